#include "engine/remote/leader.h"

#include <grpcpp/server_builder.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/remote/leader_stream.h"
#include "engine/remote/plan_codec.h"
#include "engine/remote/remote_executor.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;

v1::LeaderMessage AbortMessage(const absl::Status& reason) {
  v1::LeaderMessage message;
  message.set_abort(std::string(reason.message()));
  return message;
}

v1::LeaderMessage StoreMessage(const std::string& key, const std::string& value) {
  v1::LeaderMessage message;
  message.mutable_store_value()->set_key(key);
  message.mutable_store_value()->set_value(value);
  return message;
}

}  // namespace

class Leader::Service final : public v1::WorkerService::CallbackService {
 public:
  explicit Service(Leader& leader) : leader_(leader) {}
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::LeaderMessage>* Work(
      grpc::CallbackServerContext* context) override {
    return new LeaderStream(leader_, *context);
  }

 private:
  Leader& leader_;
};

absl::StatusOr<std::unique_ptr<Leader>> Leader::Listen(const LeaderOptions& options) {
  std::unique_ptr<Leader> leader(new Leader(options));
  RETURN_IF_ERROR(leader->Listen());
  leader->thread_ = std::thread([leader = leader.get()] { leader->Run(); });
  pthread_setname_np(leader->thread_.native_handle(), "leader");
  return leader;
}

Leader::Leader(const LeaderOptions& options)
    : options_(options),
      service_(std::make_unique<Service>(*this)),
      results_(options.rank_count),
      members_(options.rank_count, options.identity) {
  for (int rank = 0; rank < options.rank_count; ++rank) {
    executors_.push_back(std::make_unique<RemoteExecutor>(*this, rank));
  }
}

absl::Status Leader::Listen() {
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);  // peers are trusted; a large batch with logprobs is a large result
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(options_.address, options_.credentials, &port_);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port_ == 0) {
    return absl::UnavailableError(
        absl::StrCat("parallel.leader_address: ", options_.address,
                     ": cannot listen: the port is in use or this host does not have the address"));
  }
  return absl::OkStatus();
}

Leader::~Leader() {
  Abort(absl::UnavailableError("the leader has stopped"), std::chrono::milliseconds(0));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    Changed();
  }
  if (thread_.joinable()) thread_.join();
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return open_streams_ == 0; });  // gRPC has cancelled them and calls OnDone
}

void Leader::BeginGroup() {
  std::lock_guard<std::mutex> lock(mutex_);
  members_.Begin();
  store_.Clear();
  results_.Open();
  Changed();
}

std::vector<Executor*> Leader::executors() const {
  std::vector<Executor*> executors;
  for (const auto& executor : executors_) executors.push_back(executor.get());
  return executors;
}

absl::Status Leader::health() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return members_.health();
}

GroupView Leader::Watch(uint64_t seen_version, std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, timeout, [this, seen_version] { return version_ != seen_version; });
  return {.version = version_, .workers = members_.views()};
}

void Leader::Stop(std::chrono::milliseconds grace) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (members_.life() != Membership::Life::kOpen) return;
  members_.BeginStop();
  v1::LeaderMessage stop;
  stop.mutable_stop();
  SendToAll(stop);
  CutStreams(lock, grace);
  EndLife(absl::UnavailableError("the group was stopped"));
}

void Leader::Abort(const absl::Status& reason, std::chrono::milliseconds grace) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (members_.life() == Membership::Life::kNone) return;
  EndLife(reason);
  CutStreams(lock, grace);
}

// Waits until all workers have closed their streams, then cuts the rest.
void Leader::CutStreams(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds grace) {
  if (changed_.wait_for(lock, grace, [this] { return members_.empty(); })) return;
  for (int rank = 0; rank < members_.size(); ++rank) {
    LeaderStream* const stream = members_.stream(rank);
    members_.Leave(rank);
    if (stream != nullptr) stream->Cut();
  }
}

void Leader::EndLife(const absl::Status& reason) {
  if (!members_.End(reason)) return;
  results_.Close(reason);
  SendToAll(AbortMessage(reason));
  Changed();
}

void Leader::Lose(int rank, const std::string& reason) {
  if (members_.life() != Membership::Life::kOpen) return;
  EndLife(absl::UnavailableError(absl::StrFormat("rank %d lost: %s", rank, reason)));
}

void Leader::Changed() {
  ++version_;
  changed_.notify_all();
}

void Leader::SendTo(int rank, v1::LeaderMessage message) {
  if (members_.stream(rank) != nullptr) members_.stream(rank)->Send(std::move(message));
}

void Leader::SendToAll(const v1::LeaderMessage& message) {
  for (int rank = 0; rank < members_.size(); ++rank) SendTo(rank, message);
}

void Leader::Run() {
  const auto interval = std::min(options_.heartbeat_timeout / 5, std::chrono::milliseconds(1000));
  std::unique_lock<std::mutex> lock(mutex_);
  v1::LeaderMessage heartbeat;
  heartbeat.mutable_heartbeat();
  while (!changed_.wait_for(lock, interval, [this] { return closing_; })) {
    SendToAll(heartbeat);
    if (const auto silent = members_.FindSilent(steady_clock::now(), options_.heartbeat_timeout)) {
      Lose(silent->rank, absl::StrFormat("silent for %.1f s", silent->silence.count()));
    }
  }
}

absl::Status Leader::Join(LeaderStream* stream, const v1::WorkerJoin& join) {
  std::lock_guard<std::mutex> lock(mutex_);
  const absl::Status status = members_.Join(join, stream, steady_clock::now());
  if (absl::IsFailedPrecondition(status)) {
    Log(LogLevel::kError, "refused a worker, rank %d on %s (process %d): %s", join.rank(), join.host(),
        join.pid(), status.message());
  }
  RETURN_IF_ERROR(status);
  Log(LogLevel::kInfo, "rank %d joined: process %d on %s%s%s", join.rank(), join.pid(), join.host(),
      join.gpu().empty() ? "" : ", ", join.gpu());
  v1::LeaderMessage welcome;
  welcome.mutable_welcome();
  stream->Send(std::move(welcome));
  Changed();
  return absl::OkStatus();
}

void Leader::Receive(LeaderStream* stream, const v1::WorkerMessage& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<int> rank = members_.RankOf(stream);
  if (!rank.has_value()) return;  // a stream of an earlier life
  members_.Heard(*rank, steady_clock::now());
  WorkerView& view = members_.view(*rank);
  switch (message.content_case()) {
    case v1::WorkerMessage::kResult:
      results_.Push(*rank, DecodeResult(message.result()));
      break;
    case v1::WorkerMessage::kLoading:
      view.done_bytes = message.loading().done_bytes();
      view.total_bytes = message.loading().total_bytes();
      Changed();
      break;
    case v1::WorkerMessage::kReady:
      view.state = WorkerState::kReady;
      view.block_count = message.ready().block_count();
      view.graph_count = message.ready().graph_count();
      Changed();
      break;
    case v1::WorkerMessage::kStoreSet:
      ShareValue(message.store_set());
      break;
    case v1::WorkerMessage::kStoreGet: {
      const std::string& key = message.store_get().key();
      if (const auto value = store_.Get(key, *rank)) SendTo(*rank, StoreMessage(key, *value));
      break;
    }
    case v1::WorkerMessage::kFailure:
      Lose(*rank, message.failure());
      break;
    case v1::WorkerMessage::kJoin:
    case v1::WorkerMessage::kHeartbeat:
    case v1::WorkerMessage::CONTENT_NOT_SET:
      break;
  }
}

void Leader::ShareValue(const v1::StoreSet& set) {
  for (const int waiting : store_.Set(set.key(), set.value())) {
    SendTo(waiting, StoreMessage(set.key(), set.value()));
  }
}

void Leader::StreamBroke(LeaderStream* stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<int> rank = members_.RankOf(stream);
  if (!rank.has_value()) return;
  members_.Leave(*rank);
  Lose(*rank, "its stream ended");
  Changed();
}

void Leader::StreamOpened() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++open_streams_;
}

void Leader::StreamGone() {
  std::lock_guard<std::mutex> lock(mutex_);
  --open_streams_;
  Changed();
}

absl::Status Leader::SendPlan(int rank, v1::WorkerPlan plan) {
  std::lock_guard<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(members_.health());
  CHECK(members_.stream(rank) != nullptr) << "rank " << rank;
  v1::LeaderMessage message;
  *message.mutable_plan() = std::move(plan);
  SendTo(rank, std::move(message));
  return absl::OkStatus();
}

absl::StatusOr<RankResult> Leader::TakeResult(int rank) {
  absl::StatusOr<RankResult> result = results_.Take(rank, options_.step_timeout);
  if (!absl::IsDeadlineExceeded(result.status())) return result;
  std::lock_guard<std::mutex> lock(mutex_);
  Lose(rank, std::string(result.status().message()));
  return members_.health();
}

}  // namespace foredraft
