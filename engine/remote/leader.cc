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
    : options_(options), service_(std::make_unique<Service>(*this)), workers_(options.rank_count) {
  for (int rank = 0; rank < options.rank_count; ++rank) {
    executors_.push_back(std::make_unique<RemoteExecutor>(*this, rank));
  }
}

absl::Status Leader::Listen() {
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);  // workers are ours; a result with logprobs of a large batch is large
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(options_.address, options_.credentials, &port_);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port_ == 0) {
    return absl::UnavailableError(
        absl::StrCat("parallel.leader_address: ", options_.address,
                     ": cannot listen there: port in use or address not of this host"));
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
  changed_.wait(lock, [this] { return open_streams_ == 0; });  // gRPC ends cancelled streams by itself
}

void Leader::BeginGroup() {
  std::unique_lock<std::mutex> lock(mutex_);
  CHECK(life_ == Life::kNone || life_ == Life::kOver);
  for (const Worker& worker : workers_) CHECK(worker.stream == nullptr);
  life_ = Life::kOpen;
  health_ = absl::OkStatus();
  numerics_class_ = options_.identity.numerics_class;
  workers_.assign(options_.rank_count, Worker{});
  store_.clear();
  store_waits_.clear();
  Changed();
}

std::vector<Executor*> Leader::executors() const {
  std::vector<Executor*> executors;
  for (const auto& executor : executors_) executors.push_back(executor.get());
  return executors;
}

absl::Status Leader::health() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return health_;
}

std::vector<WorkerView> Leader::Watch(uint64_t* seen, std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, timeout, [this, seen] { return change_count_ != *seen; });
  *seen = change_count_;
  std::vector<WorkerView> views;
  for (const Worker& worker : workers_) views.push_back(worker.view);
  return views;
}

void Leader::Stop(std::chrono::milliseconds grace) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (life_ != Life::kOpen) return;
  life_ = Life::kStopping;  // from now on a stream's end is what was asked for
  v1::LeaderMessage stop;
  stop.mutable_stop();
  for (const Worker& worker : workers_) {
    if (worker.stream != nullptr) worker.stream->Send(stop);
  }
  CutStreams(lock, grace);
  EndLife(absl::UnavailableError("the group was stopped"));
}

void Leader::Abort(const absl::Status& reason, std::chrono::milliseconds grace) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (life_ == Life::kNone) return;
  EndLife(reason);
  CutStreams(lock, grace);
}

// Waits until all workers have closed their streams, then cuts the rest.
void Leader::CutStreams(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds grace) {
  const auto all_gone = [this] {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const Worker& worker) { return worker.stream == nullptr; });
  };
  if (changed_.wait_for(lock, grace, all_gone)) return;
  for (Worker& worker : workers_) {
    if (worker.stream != nullptr) std::exchange(worker.stream, nullptr)->Cut();
  }
}

void Leader::EndLife(const absl::Status& reason) {
  if (health_.ok()) health_ = reason;
  if (life_ == Life::kOver) return;
  life_ = Life::kOver;
  for (const Worker& worker : workers_) {
    if (worker.stream != nullptr) worker.stream->Send(AbortMessage(health_));
  }
  Changed();
}

void Leader::Lose(int rank, const std::string& reason) {
  if (life_ != Life::kOpen) return;
  EndLife(absl::UnavailableError(absl::StrFormat("rank %d lost: %s", rank, reason)));
}

void Leader::Changed() {
  ++change_count_;
  changed_.notify_all();
}

void Leader::Run() {
  const auto interval = std::min(options_.heartbeat_timeout / 5, std::chrono::milliseconds(1000));
  std::unique_lock<std::mutex> lock(mutex_);
  v1::LeaderMessage heartbeat;
  heartbeat.mutable_heartbeat();
  while (!changed_.wait_for(lock, interval, [this] { return closing_; })) {
    const auto now = steady_clock::now();
    for (int rank = 0; rank < options_.rank_count; ++rank) {
      const Worker& worker = workers_[rank];
      if (worker.stream == nullptr) continue;
      worker.stream->Send(heartbeat);
      if (now - worker.last_heard > options_.heartbeat_timeout) {
        Lose(rank, absl::StrFormat("silent for %.1f s",
                                   std::chrono::duration<double>(now - worker.last_heard).count()));
      }
    }
  }
}

int Leader::RankOf(const LeaderStream* stream) const {
  for (int rank = 0; rank < options_.rank_count; ++rank) {
    if (workers_[rank].stream == stream) return rank;
  }
  return -1;
}

absl::Status Leader::Join(LeaderStream* stream, const v1::WorkerJoin& join) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int rank = join.rank();
  if (rank < 0 || rank >= options_.rank_count) {
    return absl::FailedPreconditionError(
        absl::StrFormat("rank: %d, allowed 0..%d", rank, options_.rank_count - 1));
  }
  GroupIdentity expected = options_.identity;
  expected.numerics_class = numerics_class_;
  const absl::Status same =
      CheckSameIdentity(expected, {.version = join.version(),
                                   .model_hash = join.model_hash(),
                                   .config_keys = {join.config_keys().begin(), join.config_keys().end()},
                                   .numerics_class = join.numerics_class()});
  if (!same.ok()) {
    Log(LogLevel::kError, "refused a worker, rank %d on %s (process %d): %s", rank, join.host(), join.pid(),
        same.message());
    return same;
  }
  // Both may be over soon: a worker that dials again is answered again.
  if (life_ != Life::kOpen) return absl::UnavailableError("the group is not open, dial again");
  Worker& worker = workers_[rank];
  if (worker.stream != nullptr) {
    return absl::UnavailableError(absl::StrFormat("rank %d is taken by process %d on %s, dial again", rank,
                                                  worker.view.pid, worker.view.host));
  }
  numerics_class_ = join.numerics_class();
  worker.stream = stream;
  worker.last_heard = steady_clock::now();
  worker.view = {.state = WorkerState::kJoined,
                 .device = join.device(),
                 .numerics_class = join.numerics_class(),
                 .host = join.host(),
                 .pid = join.pid()};
  Log(LogLevel::kInfo, "rank %d joined: process %d on %s", rank, join.pid(), join.host());
  v1::LeaderMessage welcome;
  welcome.mutable_welcome();
  stream->Send(std::move(welcome));
  Changed();
  return absl::OkStatus();
}

void Leader::Receive(LeaderStream* stream, v1::WorkerMessage message) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int rank = RankOf(stream);
  if (rank < 0) return;  // of an earlier life
  Worker& worker = workers_[rank];
  worker.last_heard = steady_clock::now();
  switch (message.content_case()) {
    case v1::WorkerMessage::kResult:
      worker.results.push_back(DecodeResult(message.result()));
      Changed();
      break;
    case v1::WorkerMessage::kLoading:
      worker.view.done_bytes = message.loading().done_bytes();
      worker.view.total_bytes = message.loading().total_bytes();
      Changed();
      break;
    case v1::WorkerMessage::kReady:
      worker.view.state = WorkerState::kReady;
      worker.view.block_count = message.ready().block_count();
      worker.view.graph_count = message.ready().graph_count();
      Changed();
      break;
    case v1::WorkerMessage::kStoreSet:
    case v1::WorkerMessage::kStoreGet:
      ReceiveStore(stream, message);
      break;
    case v1::WorkerMessage::kFailure:
      Lose(rank, message.failure());
      break;
    case v1::WorkerMessage::kJoin:
    case v1::WorkerMessage::kHeartbeat:
    case v1::WorkerMessage::CONTENT_NOT_SET:
      break;
  }
}

void Leader::ReceiveStore(LeaderStream* stream, const v1::WorkerMessage& message) {
  if (message.has_store_get()) {
    const std::string& key = message.store_get().key();
    if (const auto found = store_.find(key); found != store_.end()) {
      stream->Send(StoreMessage(key, found->second));
    } else {
      store_waits_.emplace(key, stream);
    }
    return;
  }
  const std::string& key = message.store_set().key();
  store_[key] = message.store_set().value();
  const auto [first, last] = store_waits_.equal_range(key);
  for (auto wait = first; wait != last; ++wait) wait->second->Send(StoreMessage(key, store_[key]));
  store_waits_.erase(first, last);
}

void Leader::StreamBroke(LeaderStream* stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(store_waits_, [stream](const auto& wait) { return wait.second == stream; });
  const int rank = RankOf(stream);
  if (rank < 0) return;
  workers_[rank].stream = nullptr;
  Lose(rank, "its stream ended");
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
  if (!health_.ok()) return health_;
  v1::LeaderMessage message;
  *message.mutable_plan() = std::move(plan);
  CHECK(workers_[rank].stream != nullptr) << "rank " << rank;
  workers_[rank].stream->Send(std::move(message));
  return absl::OkStatus();
}

absl::StatusOr<RankResult> Leader::TakeResult(int rank) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::deque<RankResult>& results = workers_[rank].results;
  changed_.wait_for(lock, options_.step_timeout,
                    [this, &results] { return !results.empty() || !health_.ok(); });
  if (!results.empty()) {
    RankResult result = std::move(results.front());
    results.pop_front();
    return result;
  }
  if (health_.ok())
    Lose(rank, absl::StrFormat("no result within %.1f s",
                               std::chrono::duration<double>(options_.step_timeout).count()));
  return health_;
}

}  // namespace foredraft
