#include "client/load/client.h"

#include <utility>

#include "base/status_macros.h"

namespace foredraft {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;
using std::chrono::system_clock;

constexpr std::chrono::seconds kConnectDeadline{10};

system_clock::time_point DeadlineIn(duration<double> time) {
  return system_clock::now() + std::chrono::duration_cast<system_clock::duration>(time);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> NewConnection(const ServerAddress& server) {
  grpc::ChannelArguments arguments;
  // Without this, channels to the same address share one connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  return OpenChannel(server, arguments);
}

absl::StatusOr<v1::GetModelResponse> GetModel(const ServerAddress& server) {
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, NewConnection(server));
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(kConnectDeadline));
  v1::GetModelResponse model;
  const grpc::Status status = v1::GenerationService::NewStub(channel)->GetModel(&context, {}, &model);
  if (!status.ok()) return WithListener(CallError(server.address, status), server.address);
  return model;
}

}  // namespace

TimedCall::TimedCall(v1::GenerationService::Stub& stub, v1::GenerateRequest request, MeasuredRequest measured,
                     Options options)
    : stub_(stub),
      request_(std::move(request)),
      options_(std::move(options)),
      measured_(std::move(measured)) {}

double TimedCall::Now() const { return duration<double>(steady_clock::now() - options_.run_start).count(); }

void TimedCall::Start(std::shared_ptr<TimedCall> self) {
  self_ = std::move(self);
  if (options_.timeout_s) {
    // The daemon ends the request at its timeout. The call's deadline is for a daemon that does not answer.
    constexpr double kGrace = 2;
    context_.set_deadline(DeadlineIn(duration<double>(*options_.timeout_s + kGrace)));
  }
  measured_.sent_s = Now();
  stub_.async()->GenerateStream(&context_, &request_, this);
  StartRead(&chunk_);
  StartCall();
}

void TimedCall::Cancel() {
  cancelled_.store(true);
  context_.TryCancel();
}

void TimedCall::OnReadDone(bool ok) {
  if (!ok) return;
  AddChunk(measured_, Now(), chunk_);
  if (options_.keeps_answer) answer_ += chunk_.text();
  options_.received_tokens->fetch_add(chunk_.token_ids_size(), std::memory_order_relaxed);
  StartRead(&chunk_);
}

void TimedCall::OnDone(const grpc::Status& status) {
  EndRequest(measured_,
             absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()),
             cancelled_.load());
  const auto done = options_.done;  // a copy: `done` may destroy this call before it returns
  done(std::move(self_));
}

absl::StatusOr<std::unique_ptr<BenchClient>> BenchClient::Connect(const ServerAddress& server,
                                                                  int connections) {
  absl::StatusOr<v1::GetModelResponse> model = GetModel(server);
  // Retry once: gRPC 1.51 reads errno of a pending connect too late and can report a refusal that did not
  // happen. For the same reason all connections are opened here. Requests then need not wait for a
  // connection, and fail at once when the daemon goes away.
  if (absl::IsUnavailable(model.status())) model = GetModel(server);
  if (!model.ok()) return model.status();
  std::unique_ptr<BenchClient> client(new BenchClient());
  client->address_ = server.address;
  client->model_ = *std::move(model);
  for (int i = 0; i < connections; ++i) {
    ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, NewConnection(server));
    if (!channel->WaitForConnected(DeadlineIn(kConnectDeadline))) {
      return CallError(server.address,
                       grpc::Status(grpc::StatusCode::UNAVAILABLE, "accepts no further connection"));
    }
    client->stubs_.push_back(v1::GenerationService::NewStub(channel));
  }
  return client;
}

std::shared_ptr<TimedCall> BenchClient::NewCall(v1::GenerateRequest request, MeasuredRequest measured,
                                                TimedCall::Options options) {
  v1::GenerationService::Stub& stub = *stubs_[next_stub_.fetch_add(1) % stubs_.size()];
  return std::make_shared<TimedCall>(stub, std::move(request), std::move(measured), std::move(options));
}

}  // namespace foredraft
