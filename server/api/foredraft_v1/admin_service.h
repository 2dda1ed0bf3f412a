#pragma once

// The gRPC service for operators. Each method calls one function and translates its answer. The API's
// listener serves only the methods that read, the admin listener all.

#include <functional>
#include <string>
#include <utility>

#include "foredraft/v1/admin.grpc.pb.h"
#include "server/api/access.h"
#include "server/api/admin_hooks.h"

namespace foredraft {

class AdminService final : public v1::AdminService::CallbackService {
 public:
  // `refusal` is empty on the admin listener. Elsewhere it says where that listener is, and methods that
  // change something are refused with it. The access outlives the service. The admin listener's callers need
  // the role admin, others the role api.
  AdminService(AdminHooks hooks, std::function<ServerLoad()> load, const Access& access, std::string refusal)
      : hooks_(std::move(hooks)), load_(std::move(load)), access_(access), refusal_(std::move(refusal)) {}

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
  absl::Status MayRead(const grpc::CallbackServerContext& context) const;
  absl::Status MayChange(const grpc::CallbackServerContext& context) const;

  const AdminHooks hooks_;
  const std::function<ServerLoad()> load_;  // thread-safe
  const Access& access_;
  const std::string refusal_;
};

}  // namespace foredraft
