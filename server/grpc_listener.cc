#include "server/grpc_listener.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/support/server_interceptor.h>
#include <sys/socket.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

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
                 ": the request cannot be decoded: it is no message of this method, or has text that is not "
                 "UTF-8")});
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

// Answers requests that are no message of their method, or have text that is not UTF-8, with INVALID_ARGUMENT
// and a text, for all services of the server.
void AnswerUndecodableRequests(grpc::ServerBuilder& builder) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<StatusInterceptorFactory>());
  builder.experimental().SetInterceptorCreators(std::move(creators));
}

void SetChannelOptions(const ServerConfig& config, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(config.max_message_mib << 20);
  AnswerUndecodableRequests(builder);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, config.handshake_timeout_s * 1000);
  builder.SetResourceQuota(
      grpc::ResourceQuota("foredraft").Resize(static_cast<size_t>(config.memory_quota_mib) << 20));
  // Gateways ping every 30 s, also while idle. A dead peer is found within a minute.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 40'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Open(const ServerConfig& limits,
                                                                 Options options) {
  ASSIGN_OR_RETURN(ListeningSockets sockets,
                   ListeningSockets::Open(options.key, options.address, options.private_socket));
  std::unique_ptr<GrpcListener> listener(new GrpcListener());
  listener->address_ = options.address;
  grpc::ServerBuilder builder;
  SetChannelOptions(limits, builder);
  listener->intake_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  listener->health_.Register(builder);
  listener->server_ = builder.BuildAndStart();
  CHECK(listener->server_ != nullptr) << options.key << ": no gRPC server";
  listener->health_.Start();
  listener->acceptor_ =
      std::make_unique<Acceptor>(std::move(sockets), *options.connections,
                                 listener->TakeThrough(limits, options), std::move(options.refused));
  return listener;
}

Acceptor::Take GrpcListener::TakeThrough(const ServerConfig& limits, const Options& options) {
  give_ = [intake = intake_.get()](int listener_fd, int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener_fd;
    connection.fd = fd;
    intake->HandleNewConnection(&connection);
  };
  if (options.guard == nullptr) return give_;
  guarded_ = std::make_shared<GuardedListener>(
      GuardedListener::Options{.handshake_timeout = std::chrono::seconds(limits.handshake_timeout_s),
                               .tls = options.tls,
                               .intake = give_});
  return [guard = options.guard, guarded = guarded_](int listener_fd, int fd) {
    guard->Take(guarded, listener_fd, fd);
  };
}

int GrpcListener::Dial() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  give_(acceptor_->listener_fd(), ends[1]);
  return ends[0];
}

GrpcListener::~GrpcListener() { Shutdown(); }

std::string GrpcListener::address() const {
  const bool chosen = address_.ends_with(":0") && port() != 0;
  return chosen ? absl::StrCat(address_.substr(0, address_.size() - 1), port()) : address_;
}

void GrpcListener::Shutdown() {
  if (server_ == nullptr) return;
  acceptor_->Stop();
  if (guarded_ != nullptr) guarded_->Stop();
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  health_.Stop();
  server_.reset();
}

}  // namespace foredraft
