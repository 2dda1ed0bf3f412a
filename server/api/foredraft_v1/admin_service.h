#ifndef FOREDRAFT_SERVER_API_FOREDRAFT_V1_ADMIN_SERVICE_H_
#define FOREDRAFT_SERVER_API_FOREDRAFT_V1_ADMIN_SERVICE_H_

// The gRPC service for operators. Each method calls one function and translates its answer.

#include <functional>
#include <utility>

#include "foredraft/v1/admin.grpc.pb.h"
#include "server/api/admin_hooks.h"

namespace foredraft {

class AdminService final : public v1::AdminService::CallbackService {
 public:
  AdminService(AdminHooks hooks, std::function<ServerLoad()> load)
      : hooks_(std::move(hooks)), load_(std::move(load)) {}

  grpc::ServerUnaryReactor* GetConfig(grpc::CallbackServerContext* context,
                                      const v1::GetConfigRequest* request,
                                      v1::GetConfigResponse* response) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context, const v1::GetLoadRequest* request,
                                    v1::GetLoadResponse* response) override;
  grpc::ServerUnaryReactor* ReloadConfig(grpc::CallbackServerContext* context,
                                         const v1::ReloadConfigRequest* request,
                                         v1::ReloadConfigResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;

 private:
  const AdminHooks hooks_;
  const std::function<ServerLoad()> load_;  // thread-safe
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_API_FOREDRAFT_V1_ADMIN_SERVICE_H_
