#include "server/api/admin_service.h"

#include "server/api/response_fields.h"

namespace foredraft {
namespace {

grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::GetConfig(grpc::CallbackServerContext* context,
                                                  const v1::GetConfigRequest*,
                                                  v1::GetConfigResponse* response) {
  response->set_yaml(hooks_.config_yaml());
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::GetLoad(grpc::CallbackServerContext* context,
                                                const v1::GetLoadRequest*, v1::GetLoadResponse* response) {
  *response = hooks_.load();
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::ReloadConfig(grpc::CallbackServerContext* context,
                                                     const v1::ReloadConfigRequest*,
                                                     v1::ReloadConfigResponse* response) {
  const absl::StatusOr<ReloadReport> report = hooks_.reload();
  if (report.ok()) {
    response->mutable_applied_keys()->Add(report->applied_keys.begin(), report->applied_keys.end());
    response->mutable_restart_keys()->Add(report->restart_keys.begin(), report->restart_keys.end());
  }
  return FinishNow(context, report.status());
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context, const v1::DrainRequest*,
                                              v1::DrainResponse* response) {
  response->set_open_streams(hooks_.drain());
  return FinishNow(context, absl::OkStatus());
}

}  // namespace foredraft
