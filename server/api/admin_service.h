#ifndef FOREDRAFT_SERVER_API_ADMIN_SERVICE_H_
#define FOREDRAFT_SERVER_API_ADMIN_SERVICE_H_

// The gRPC service for operators. It decides nothing: each method asks the daemon through a hook.

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "foredraft/v1/admin.grpc.pb.h"
#include "server/api/reload.h"

namespace foredraft {

// Called on gRPC's callback threads; thread-safe, and none waits for the engine.
struct AdminHooks {
  std::function<std::string()> config_yaml;
  std::function<v1::GetLoadResponse()> load;
  std::function<absl::StatusOr<ReloadReport>()> reload;
  std::function<int()> drain;  // gives the calls still open
};

class AdminService final : public v1::AdminService::CallbackService {
 public:
  explicit AdminService(AdminHooks hooks) : hooks_(std::move(hooks)) {}

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
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_API_ADMIN_SERVICE_H_
