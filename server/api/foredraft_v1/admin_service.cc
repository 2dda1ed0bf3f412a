#include "server/api/foredraft_v1/admin_service.h"

#include "base/status_macros.h"
#include "server/api/foredraft_v1/messages.h"
#include "server/api/grpc_status.h"

namespace foredraft {

absl::Status AdminService::MayRead(const grpc::CallbackServerContext& context) const {
  return access_.Check(context, refusal_.empty() ? Role::kAdmin : Role::kApi).status();
}

absl::Status AdminService::MayChange(const grpc::CallbackServerContext& context) const {
  RETURN_IF_ERROR(MayRead(context));
  return refusal_.empty() ? absl::OkStatus() : absl::PermissionDeniedError(refusal_);
}

grpc::ServerUnaryReactor* AdminService::GetConfig(grpc::CallbackServerContext* context,
                                                  const v1::GetConfigRequest*,
                                                  v1::GetConfigResponse* response) {
  const absl::Status allowed = MayRead(*context);
  if (allowed.ok()) response->set_yaml(hooks_.config_yaml());
  return FinishNow(context, allowed);
}

grpc::ServerUnaryReactor* AdminService::GetLoad(grpc::CallbackServerContext* context,
                                                const v1::GetLoadRequest*, v1::GetLoadResponse* response) {
  const absl::Status allowed = MayRead(*context);
  if (allowed.ok()) FillLoad(load_(), response);
  return FinishNow(context, allowed);
}

grpc::ServerUnaryReactor* AdminService::ReloadConfig(grpc::CallbackServerContext* context,
                                                     const v1::ReloadConfigRequest*,
                                                     v1::ReloadConfigResponse* response) {
  if (const absl::Status allowed = MayChange(*context); !allowed.ok()) return FinishNow(context, allowed);
  const absl::StatusOr<ReloadReport> report = hooks_.reload();
  if (report.ok()) {
    response->mutable_applied_keys()->Add(report->applied_keys.begin(), report->applied_keys.end());
    response->mutable_restart_keys()->Add(report->restart_keys.begin(), report->restart_keys.end());
  }
  return FinishNow(context, report.status());
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context, const v1::DrainRequest*,
                                              v1::DrainResponse* response) {
  if (const absl::Status allowed = MayChange(*context); !allowed.ok()) return FinishNow(context, allowed);
  hooks_.drain();
  response->set_open_streams(load_().open_calls);
  return FinishNow(context, absl::OkStatus());
}

}  // namespace foredraft
