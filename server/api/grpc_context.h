#pragma once

// The CallContext of a gRPC call.

#include <grpcpp/server_context.h>

#include <optional>
#include <string>

#include "server/api/call_context.h"

namespace foredraft {

class GrpcContext final : public CallContext {
 public:
  // gRPC's context is valid until the call is done.
  explicit GrpcContext(grpc::CallbackServerContext* context) : context_(context) {}

  std::string peer() const override { return PeerOf(*context_); }
  std::string connection() const override { return context_->peer(); }
  std::string authorization() const override { return AuthorizationOf(*context_); }
  std::string traceparent() const override;
  std::optional<std::chrono::system_clock::time_point> deadline() const override;
  void SetRequestId(const std::string& id) override;
  void SetTraceParent(const std::string& header) override;
  void SetIgnored(const FieldNotes& notes) override;
  void Cancel() override { context_->TryCancel(); }

  // The client's address, also behind a guard.
  static std::string PeerOf(const grpc::ServerContextBase& context);
  static std::string AuthorizationOf(const grpc::ServerContextBase& context);

 private:
  grpc::CallbackServerContext* const context_;
};

}  // namespace foredraft
