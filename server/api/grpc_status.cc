#include "server/api/grpc_status.h"

#include <optional>
#include <string>

#include "base/error_reason.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/api/grpc_context.h"
#include "server/api/request_id.h"
#include "server/output/request_log.h"

namespace foredraft {

grpc::Status ToGrpc(const absl::Status& status) {
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message(status.message());
  const std::string reason = ReasonOf(status);
  if (reason.empty()) return grpc::Status(code, message);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("foredraft");
  google::rpc::Status details;
  details.set_code(code);
  details.set_message(message);
  (void)details.add_details()->PackFrom(info);  // newer versions of protobuf make its result nodiscard
  return grpc::Status(code, message, details.SerializeAsString());
}

void Answer(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor,
            const absl::Status& status) {
  const std::string id = MakeRequestId();
  GrpcContext call(context);
  const std::optional<TraceContext> trace = ReadTraceParent(call.traceparent());
  call.SetRequestId(id);
  if (trace.has_value()) call.SetTraceParent(trace->Header());
  if (!status.ok()) LogRefusal(id, call.peer(), status, trace);
  reactor->Finish(ToGrpc(status));
}

grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Answer(context, reactor, status);
  return reactor;
}

}  // namespace foredraft
