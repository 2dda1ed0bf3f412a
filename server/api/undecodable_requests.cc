#include "server/api/undecodable_requests.h"

#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

// A method whose request cannot be decoded never runs: its message is null, and the status of the call is
// gRPC's own, without a text: UNIMPLEMENTED in 1.51, INTERNAL in 1.83. A call of an unknown method has no
// message.
class StatusInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit StatusInterceptor(ServerRpcInfo* call) : call_(call) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE)) {
      undecodable_ = methods->GetRecvMessage() == nullptr;
    }
    if (undecodable_ && methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      const bool own = status.error_code() == grpc::StatusCode::UNIMPLEMENTED ||
                       status.error_code() == grpc::StatusCode::INTERNAL;
      if (own && status.error_message().empty()) {
        methods->ModifySendStatus(
            {grpc::StatusCode::INVALID_ARGUMENT,
             absl::StrCat(
                 call_->method(),
                 ": the request cannot be decoded: it is no message of this method, or has text that is "
                 "not UTF-8")});
      }
    }
    methods->Proceed();
  }

 private:
  ServerRpcInfo* const call_;
  bool undecodable_ = false;
};

class StatusInterceptorFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* call) override {
    return new StatusInterceptor(call);  // gRPC owns it
  }
};

}  // namespace

void AnswerUndecodableRequests(grpc::ServerBuilder& builder) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<StatusInterceptorFactory>());
  builder.experimental().SetInterceptorCreators(std::move(creators));
}

}  // namespace foredraft
