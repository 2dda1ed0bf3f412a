#include "ranks/leader.h"

#include <grpcpp/server_builder.h>
#include <pthread.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "ranks/leader_stream.h"
#include "ranks/plan_codec.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;

worker::v1::LeaderMessage AbortMessage(const absl::Status& reason) {
  worker::v1::LeaderMessage message;
  message.set_abort(std::string(reason.message()));
  return message;
}

worker::v1::LeaderMessage StoreMessage(const std::string& key, const std::string& value) {
  worker::v1::LeaderMessage message;
  message.mutable_store_value()->set_key(key);
  message.mutable_store_value()->set_value(value);
  return message;
}

constexpr std::chrono::seconds kStrangerLogInterval(10);
constexpr std::chrono::seconds kCutAfter(
    1);  // from the end of a stream to its cut, if its peer does not read
constexpr char kUnknown[] = "this port is for the workers of one group, which have its secret";
constexpr int kStreamsPerConnection = 8;  // a worker needs one, and another while it dials again

// Connections that a leader may have at once: of workers that have joined, of max_pending that have not, and
// of equally many whose end gRPC has not read yet.
int MostConnections(int max_pending, int rank_count) { return 2 * max_pending + rank_count; }

// Ends a call without reading from it.
class Refusal final : public grpc::ServerBidiReactor<worker::v1::WorkerMessage, worker::v1::LeaderMessage> {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }

 private:
  void OnDone() override { delete this; }
};

}  // namespace

int MaxPendingConnections(int configured) { return std::clamp(DescriptorLimit() / 16, 1, configured); }

int LeaderDescriptors(int max_pending_connections, int rank_count) {
  return MostConnections(max_pending_connections, rank_count) + max_pending_connections;  // the duplicates
}

// The Executor of a rank that runs in a worker process, behind the leader's stream to it.
class RemoteExecutor : public Executor {
 public:
  RemoteExecutor(Leader& leader, int rank) : leader_(leader), rank_(rank) {}

  absl::Status Launch(const IterationPlan& plan) override { return leader_.SendPlan(rank_, plan); }
  // Results that have arrived are still returned after the group is lost.
  absl::StatusOr<RankResult> Collect() override { return leader_.TakeResult(rank_); }
  void Refuse(const absl::Status& why) override { leader_.RefuseResult(rank_, why); }

 private:
  Leader& leader_;
  const int rank_;
};

class Leader::Service final : public worker::v1::WorkerService::CallbackService {
 public:
  explicit Service(Leader& leader) : leader_(leader) {}
  grpc::ServerBidiReactor<worker::v1::WorkerMessage, worker::v1::LeaderMessage>* Work(
      grpc::CallbackServerContext* context) override {
    if (const auto opening = leader_.OpeningOfCall(*context)) {
      return new LeaderStream(leader_, *context, *opening);
    }
    leader_.LogStranger(context->peer());
    return new Refusal({grpc::StatusCode::UNAUTHENTICATED, kUnknown});
  }

 private:
  Leader& leader_;
};

absl::StatusOr<std::unique_ptr<Leader>> Leader::Listen(const LeaderOptions& options) {
  std::unique_ptr<Leader> leader(new Leader(options));
  RETURN_IF_ERROR(leader->Listen());
  leader->thread_ = std::thread([leader = leader.get()] {
    pthread_setname_np(pthread_self(), "leader");  // before it allocates: tests find its allocations by name
    leader->Run();
  });
  return leader;
}

Leader::Leader(const LeaderOptions& options)
    : options_(options),
      service_(std::make_unique<Service>(*this)),
      connections_(MostConnections(options.max_pending_connections, options.rank_count)),
      pending_(options.max_pending_connections),
      refusals_(kStrangerLogInterval),
      results_(options.rank_count),
      members_(options.rank_count, options.identity),
      expected_(options.rank_count),
      secrets_(options.secrets),
      strangers_(kStrangerLogInterval) {
  for (int rank = 0; rank < options.rank_count; ++rank) {
    executors_.push_back(std::make_unique<RemoteExecutor>(*this, rank));
  }
  const int group_size = options.attention_tp;
  for (int first = 0; group_size > 1 && first < options.rank_count; first += group_size) {
    std::vector<Executor*> ranks;
    for (int rank = first; rank < first + group_size; ++rank) ranks.push_back(executors_[rank].get());
    groups_.push_back(std::make_unique<TensorGroupExecutor>(first, std::move(ranks), options.disagreed));
  }
}

absl::Status Leader::Listen() {
  constexpr char kKey[] = "parallel.leader_address";
  ASSIGN_OR_RETURN(ListeningSockets sockets, ListeningSockets::Open(kKey, options_.address, false));
  if (sockets.port() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(kKey, ": ", options_.address, ", allowed host:port"));
  }
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::min<int64_t>(LargestMessage(options_.limits), std::numeric_limits<int>::max())));
  // A connection that says nothing ends, whether in its handshake or after it.
  const int join_ms = static_cast<int>(options_.join_timeout.count());
  builder.AddChannelArgument("grpc.server_handshake_timeout_ms", join_ms);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, join_ms);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnection);
  intake_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, options_.credentials);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr) << kKey << ": no gRPC server";
  acceptor_ = std::make_unique<Acceptor>(
      std::move(sockets), connections_, [this](int listener_fd, int fd) { TakeConnection(listener_fd, fd); },
      [this] { RefusedConnection(); });
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
  acceptor_->Stop();
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return open_streams_ == 0; });  // gRPC has cancelled them and calls OnDone
}

void Leader::BeginGroup() {
  std::lock_guard<std::mutex> lock(mutex_);
  members_.Begin();
  store_.Clear();
  for (auto& expected : expected_) expected.clear();
  results_.Open();
  for (const auto& group : groups_) group->Restart();
  Changed();
}

std::vector<Executor*> Leader::executors() const {
  std::vector<Executor*> executors;
  for (const auto& group : groups_) executors.push_back(group.get());
  if (!executors.empty()) return executors;
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
  worker::v1::LeaderMessage stop;
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

void Leader::SendTo(int rank, worker::v1::LeaderMessage message) {
  if (members_.stream(rank) != nullptr) members_.stream(rank)->Send(std::move(message));
}

void Leader::SendToAll(const worker::v1::LeaderMessage& message) {
  for (int rank = 0; rank < members_.size(); ++rank) SendTo(rank, message);
}

void Leader::Run() {
  const MustHaveMemory scope;
  const auto interval =
      std::min({options_.heartbeat_timeout / 5, options_.join_timeout / 5, std::chrono::milliseconds(1000)});
  std::unique_lock<std::mutex> lock(mutex_);
  worker::v1::LeaderMessage heartbeat;
  heartbeat.mutable_heartbeat();
  while (!changed_.wait_for(lock, interval, [this] { return closing_; })) {
    SendToAll(heartbeat);
    if (const auto silent = members_.FindSilent(steady_clock::now(), options_.heartbeat_timeout)) {
      Lose(silent->rank, absl::StrFormat("silent for %.1f s", silent->silence.count()));
    }
    EndLateJoins();
    pending_.ForgetClosed();
  }
}

// ---- before a stream has joined ----

void Leader::TakeConnection(int listener_fd, int fd) {
  if (pending_.Add(fd)) RefusedConnection();
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listener_fd;
  connection.fd = fd;
  intake_->HandleNewConnection(&connection);
}

void Leader::RefusedConnection() {
  if (options_.refused != nullptr) options_.refused();
  if (const int count = refusals_.Add(); count > 0) {
    Log(LogLevel::kWarning,
        "closed %d connections to the workers' port: %d that have not joined are open "
        "(parallel.max_pending_connections)",
        count, pending_.count());
  }
}

void Leader::SetSecrets(std::vector<std::string> secrets) {
  std::lock_guard<std::mutex> lock(mutex_);
  secrets_ = std::move(secrets);
}

std::optional<Opening> Leader::OpeningOfCall(const grpc::CallbackServerContext& context) const {
  const auto found = context.client_metadata().find("authorization");
  if (found == context.client_metadata().end()) {
    return options_.trust_certificates ? std::optional<Opening>(Opening()) : std::nullopt;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return ReadOpening({found->second.data(), found->second.size()}, secrets_);
}

// Logs one line per interval, however many strangers call.
void Leader::LogStranger(const std::string& peer) {
  int count = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    count = strangers_.Add();
    if (count == 0) return;
  }
  Log(LogLevel::kWarning,
      "refused %d calls of the workers' port without the group's secret, the last from %s", count,
      ShowPeerText(peer));
}

void Leader::EndLateJoins() {
  const auto now = steady_clock::now();
  for (auto& [stream, joining] : joining_) {
    if (now < joining.deadline) continue;
    if (joining.told) {
      stream->Cut();
    } else {
      stream->End(absl::DeadlineExceededError(absl::StrFormat(
          "no join within %.1f s", std::chrono::duration<double>(options_.join_timeout).count())));
    }
    joining = {.deadline = now + kCutAfter, .told = true};
  }
}

absl::Status Leader::Join(LeaderStream* stream, const std::string& peer,
                          const worker::v1::WorkerMessage& message) {
  if (!message.has_join()) {
    return absl::InvalidArgumentError("the first message of a worker must be join");
  }
  const worker::v1::WorkerJoin& join = message.join();
  RETURN_IF_ERROR(CheckJoin(join));
  if (!SameProof(join.proof(), stream->expected_proof())) {
    LogStranger(peer);
    return absl::UnauthenticatedError(kUnknown);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto joining = joining_.find(stream);
  if (joining == joining_.end() || joining->second.told)
    return absl::DeadlineExceededError("joined too late");
  const absl::Status status = members_.Join(join, stream, steady_clock::now());
  if (absl::IsFailedPrecondition(status)) {
    Log(LogLevel::kError, "refused a worker, rank %d on %s (process %d): %s", join.rank(), join.host(),
        join.pid(), status.message());
  }
  RETURN_IF_ERROR(status);
  joining_.erase(joining);
  pending_.Joined(peer);
  Log(LogLevel::kInfo, "rank %d joined: process %d on %s%s%s", join.rank(), join.pid(), join.host(),
      join.gpu().empty() ? "" : ", ", join.gpu());
  worker::v1::LeaderMessage welcome;
  welcome.mutable_welcome()->set_token_count(options_.token_count);
  welcome.mutable_welcome()->mutable_missing_tokens()->Add(options_.missing_tokens.begin(),
                                                           options_.missing_tokens.end());
  stream->Send(std::move(welcome));
  Changed();
  return absl::OkStatus();
}

void Leader::Receive(LeaderStream* stream, const worker::v1::WorkerMessage& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<int> rank = members_.RankOf(stream);
  if (!rank.has_value()) return;  // a stream of an earlier life
  members_.Heard(*rank, steady_clock::now());
  if (const absl::Status status = ApplyMessage(*rank, message); !status.ok()) {
    LoseLiar(*rank, status);
  }
}

void Leader::LoseLiar(int rank, const absl::Status& lie) {
  expected_[rank].clear();  // no plan is open any more, so later results are refused
  Lose(rank, absl::StrCat("it sent what its plans do not allow: ", ShowPeerText(lie.message())));
}

// Checks a message and applies it. INVALID_ARGUMENT: this rank may not send it now, and nothing has changed.
absl::Status Leader::ApplyMessage(int rank, const worker::v1::WorkerMessage& message) {
  WorkerView& view = members_.view(rank);
  switch (message.content_case()) {
    case worker::v1::WorkerMessage::kResult:
      return ApplyResult(rank, message.result());
    case worker::v1::WorkerMessage::kLoading:
      RETURN_IF_ERROR(CheckLoading(message.loading()));
      view.done_bytes = message.loading().done_bytes();
      view.total_bytes = message.loading().total_bytes();
      Changed();
      return absl::OkStatus();
    case worker::v1::WorkerMessage::kReady:
      return ApplyReady(rank, message.ready());
    case worker::v1::WorkerMessage::kStoreSet:
      RETURN_IF_ERROR(CheckStoreSet(message.store_set(), store_.bytes()));
      if (!store_.has_room()) return absl::InvalidArgumentError("store_set.key: one too many");
      ShareValue(message.store_set());
      return absl::OkStatus();
    case worker::v1::WorkerMessage::kStoreGet: {
      const std::string& key = message.store_get().key();
      RETURN_IF_ERROR(CheckStoreKey(key));
      if (!store_.has_room()) return absl::InvalidArgumentError("store_get.key: one too many");
      if (const auto value = store_.Get(key, rank)) SendTo(rank, StoreMessage(key, *value));
      return absl::OkStatus();
    }
    case worker::v1::WorkerMessage::kFailure:
      Lose(rank, ShowPeerText(message.failure()));
      return absl::OkStatus();
    case worker::v1::WorkerMessage::kHeartbeat:
      return absl::OkStatus();
    case worker::v1::WorkerMessage::kJoin:
      return absl::InvalidArgumentError("join: a second one");
    case worker::v1::WorkerMessage::CONTENT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message without content");
}

absl::Status Leader::ApplyResult(int rank, const std::string& bytes) {
  std::deque<ExpectedResult>& expected = expected_[rank];
  if (expected.empty()) return absl::InvalidArgumentError("result: one without a plan");
  ASSIGN_OR_RETURN(RankResult result, DecodeResult(bytes, expected.front(), options_.limits));
  expected.pop_front();
  results_.Push(rank, std::move(result));
  return absl::OkStatus();
}

absl::Status Leader::ApplyReady(int rank, const worker::v1::WorkerReady& ready) {
  if (members_.view(rank).state != WorkerState::kJoined)
    return absl::InvalidArgumentError("ready: a second one");
  const WorkerView* other = nullptr;
  for (int r = 0; r < members_.size(); ++r) {
    if (members_.view(r).state == WorkerState::kReady) other = &members_.view(r);
  }
  RETURN_IF_ERROR(CheckReady(ready, options_.block_count, other));
  WorkerView& view = members_.view(rank);
  view.state = WorkerState::kReady;
  view.block_count = ready.block_count();
  view.graph_count = ready.graph_count();
  Changed();
  return absl::OkStatus();
}

void Leader::ShareValue(const worker::v1::StoreSet& set) {
  for (const int waiting : store_.Set(set.key(), set.value())) {
    SendTo(waiting, StoreMessage(set.key(), set.value()));
  }
}

void Leader::StreamBroke(LeaderStream* stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  joining_.erase(stream);
  const std::optional<int> rank = members_.RankOf(stream);
  if (!rank.has_value()) return;
  members_.Leave(*rank);
  Lose(*rank, "its stream ended");
  Changed();
}

void Leader::StreamOpened(LeaderStream* stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++open_streams_;
  joining_[stream] = {.deadline = steady_clock::now() + options_.join_timeout};
}

void Leader::StreamGone() {
  std::lock_guard<std::mutex> lock(mutex_);
  --open_streams_;
  Changed();
}

absl::Status Leader::SendPlan(int rank, const IterationPlan& plan) {
  const int group = rank / options_.attention_tp;
  worker::v1::LeaderMessage message;
  message.set_plan(EncodePlan(plan, group));
  std::lock_guard<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(members_.health());
  CHECK(members_.stream(rank) != nullptr) << "rank " << rank;
  expected_[rank].push_back(
      {.number = plan.number, .draft_len = plan.draft_len, .live_slots = plan.ranks[group].live_slots});
  SendTo(rank, std::move(message));
  return absl::OkStatus();
}

void Leader::RefuseResult(int rank, const absl::Status& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  LoseLiar(rank, why);
}

absl::StatusOr<RankResult> Leader::TakeResult(int rank) {
  absl::StatusOr<RankResult> result = results_.Take(rank, options_.step_timeout);
  if (!absl::IsDeadlineExceeded(result.status())) return result;
  std::lock_guard<std::mutex> lock(mutex_);
  Lose(rank, std::string(result.status().message()));
  return members_.health();
}

}  // namespace foredraft
