#include "ranks/worker_session.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/client_callback.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "ranks/group_secret.h"
#include "ranks/outbox.h"
#include "ranks/plan_codec.h"
#include "ranks/plan_runner.h"

namespace foredraft {

struct WorkerStreamCallbacks {
  std::function<void(worker::v1::LeaderMessage message, WorkerStream& stream)> received;
  std::function<void(const grpc::Status& status)> gone;  // the last callback
};

// The worker's end of its stream to the leader: one call of WorkerService.Work. It delivers messages and the
// stream's end to the session, which decides what they mean and may destroy this object only after `gone`.
// Threads: gRPC's own call On* and the callbacks, one message at a time. No call waits.
class WorkerStream final
    : public grpc::ClientBidiReactor<worker::v1::WorkerMessage, worker::v1::LeaderMessage> {
 public:
  // Starts the call. authorization: of its metadata; empty: none.
  WorkerStream(worker::v1::WorkerService::Stub& stub, const std::string& authorization,
               WorkerStreamCallbacks callbacks);

  // Called by any thread, before `gone`.
  void Send(worker::v1::WorkerMessage message) { Start(outbox_.Push(std::move(message))); }
  void Cut();  // at once, also if the peer is unreachable; `gone` follows

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override { Start(outbox_.Written(ok)); }
  void OnDone(const grpc::Status& status) override;
  void Start(Outbox<worker::v1::WorkerMessage>::Next next);

  const WorkerStreamCallbacks callbacks_;
  grpc::ClientContext context_;
  worker::v1::LeaderMessage incoming_;
  Outbox<worker::v1::WorkerMessage> outbox_;  // own lock
};

WorkerStream::WorkerStream(worker::v1::WorkerService::Stub& stub, const std::string& authorization,
                           WorkerStreamCallbacks callbacks)
    : callbacks_(std::move(callbacks)) {
  if (!authorization.empty()) context_.AddMetadata("authorization", authorization);
  stub.async()->Work(&context_, this);
  AddHold();  // other threads start writes; Start removes it at kEnd
  StartRead(&incoming_);
  StartCall();
}

void WorkerStream::Cut() {
  outbox_.Break();
  context_.TryCancel();
  Start(outbox_.End());
}

void WorkerStream::OnReadDone(bool ok) {
  if (!ok) return Start(outbox_.End());
  callbacks_.received(std::move(incoming_), *this);
  incoming_.Clear();
  StartRead(&incoming_);
}

void WorkerStream::OnDone(const grpc::Status& status) {
  const auto gone = callbacks_.gone;  // a copy: the owner may destroy this object during the call
  gone(status);
}

void WorkerStream::Start(Outbox<worker::v1::WorkerMessage>::Next next) {
  switch (next) {
    case Outbox<worker::v1::WorkerMessage>::Next::kWrite:
      StartWrite(&outbox_.current());
      break;
    case Outbox<worker::v1::WorkerMessage>::Next::kEnd:
      StartWritesDone();
      RemoveHold();
      break;
    case Outbox<worker::v1::WorkerMessage>::Next::kNothing:
      break;
  }
}

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kDialPause(200);
constexpr std::chrono::seconds kWaitingLogInterval(10);
constexpr milliseconds kFailureGrace(1000);  // for the leader to answer a reported failure

std::shared_ptr<grpc::Channel> OpenChannel(const WorkerOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(options.leader, options.credentials, arguments);
}

// Why a dial failed. FAILED_PRECONDITION: dialing again cannot help.
absl::Status DialError(const std::string& leader, const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::FailedPreconditionError(
        absl::StrCat(leader,
                     " is a gRPC port, but not that of workers: --leader is the daemon's "
                     "parallel.leader_address, by default port 50052"));
  }
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    return absl::FailedPreconditionError(absl::StrCat(
        leader, " does not know this worker: parallel.token_file must have the same secret there and here"));
  }
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  return absl::Status(code, status.error_message().empty()
                                ? absl::StrCat("the port answered ", absl::StatusCodeToString(code))
                                : status.error_message());
}

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

// ---- joining ----

absl::StatusOr<std::unique_ptr<WorkerSession>> WorkerSession::Join(const WorkerOptions& options) {
  std::unique_ptr<WorkerSession> session(new WorkerSession(options));
  RETURN_IF_ERROR(session->Dial());
  session->thread_ = std::thread([session = session.get()] { session->Watch(); });
  pthread_setname_np(session->thread_.native_handle(), "session");
  return session;
}

WorkerSession::WorkerSession(const WorkerOptions& options)
    : options_(options),
      channel_(OpenChannel(options)),
      stub_(worker::v1::WorkerService::NewStub(channel_)),
      plans_(kMaxPlansInFlight) {}

WorkerSession::~WorkerSession() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    EndWith(absl::UnavailableError("the worker has stopped"));
  }
  CutStream();
  if (thread_.joinable()) thread_.join();
}

int WorkerSession::token_count() {
  std::lock_guard<std::mutex> lock(mutex_);
  return token_count_;
}

std::vector<int32_t> WorkerSession::missing_tokens() {
  std::lock_guard<std::mutex> lock(mutex_);
  return missing_tokens_;
}

// The caller does not hold mutex_: gRPC may call back before Cut returns.
void WorkerSession::CutStream() {
  if (stream_ == nullptr) return;
  stream_->Cut();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return stream_gone_; });  // gRPC calls OnDone after a cancel
}

worker::v1::WorkerMessage WorkerSession::JoinMessage() const {
  worker::v1::WorkerMessage message;
  worker::v1::WorkerJoin* join = message.mutable_join();
  join->set_rank(options_.rank);
  join->set_version(options_.identity.version);
  join->set_model_hash(options_.identity.model_hash);
  for (const std::string& key : options_.identity.config_keys) join->add_config_keys(key);
  join->set_numerics_class(options_.identity.numerics_class);
  join->set_device(options_.device);
  join->set_host(HostName());
  join->set_pid(getpid());
  join->set_gpu(options_.gpu);
  return message;
}

absl::Status WorkerSession::Dial() {
  const auto deadline = steady_clock::now() + options_.join_timeout;
  auto next_log_line = steady_clock::now();
  while (true) {
    const absl::Status status = DialOnce();
    if (status.ok() || absl::IsFailedPrecondition(status)) return status;
    const auto now = steady_clock::now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrFormat(
          "no group at %s within %d s: %s", options_.leader,
          std::chrono::duration_cast<std::chrono::seconds>(options_.join_timeout).count(), status.message()));
    }
    if (now >= next_log_line) {
      Log(LogLevel::kInfo, "rank %d waits for the leader at %s: %s", options_.rank, options_.leader,
          status.message());
      next_log_line = now + kWaitingLogInterval;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kDialPause, [this] { return closing_; });
  }
}

absl::Status WorkerSession::DialOnce() {
  std::unique_lock<std::mutex> lock(mutex_);
  stage_ = Stage::kDialing;
  stream_gone_ = false;
  nonce_ = MakeNonce();
  const std::string authorization =
      options_.secret.empty() ? std::string() : OpeningOf(options_.secret, nonce_);
  lock.unlock();
  auto stream = std::make_unique<WorkerStream>(
      *stub_, authorization,
      WorkerStreamCallbacks{.received = [this](worker::v1::LeaderMessage message,
                                               WorkerStream& from) { Receive(std::move(message), from); },
                            .gone = [this](const grpc::Status& status) { StreamGone(status); }});
  lock.lock();
  stream_ = std::move(stream);
  const auto answered = [this] {
    return stage_ == Stage::kJoined || stage_ == Stage::kEnded || impostor_ || stream_gone_;
  };
  if (!changed_.wait_for(lock, options_.heartbeat_timeout, answered) || impostor_) {
    lock.unlock();
    CutStream();
    lock.lock();
  }
  if (impostor_) {
    return absl::FailedPreconditionError(
        absl::StrCat(options_.leader,
                     " does not prove that it has the group's secret: parallel.token_file must have the same "
                     "secret there and here, or something else listens at this address"));
  }
  if (stage_ == Stage::kJoined) return absl::OkStatus();
  return DialError(options_.leader, stream_status_);
}

// ---- what the stream delivers ----

// Until the leader has proved itself, only its challenge counts.
void WorkerSession::AnswerChallenge(const worker::v1::WorkerChallenge& challenge, WorkerStream& stream) {
  worker::v1::WorkerMessage join = JoinMessage();
  if (!options_.secret.empty()) {
    impostor_ =
        !SameProof(challenge.proof(), ProofOf(GroupEnd::kLeader, options_.secret, nonce_, challenge.nonce()));
    if (impostor_) return;
    join.mutable_join()->set_proof(ProofOf(GroupEnd::kWorker, options_.secret, nonce_, challenge.nonce()));
  }
  stage_ = Stage::kProven;
  stream.Send(std::move(join));
}

void WorkerSession::Receive(worker::v1::LeaderMessage message, WorkerStream& stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  last_heard_ = steady_clock::now();
  if (impostor_) return;
  if (stage_ == Stage::kDialing) {
    if (message.has_challenge()) {
      AnswerChallenge(message.challenge(), stream);
    } else {
      impostor_ = true;
    }
    changed_.notify_all();
    return;
  }
  switch (message.content_case()) {
    case worker::v1::LeaderMessage::kWelcome:
      if (stage_ != Stage::kProven) break;
      token_count_ = message.welcome().token_count();
      missing_tokens_.assign(message.welcome().missing_tokens().begin(),
                             message.welcome().missing_tokens().end());
      stage_ = Stage::kJoined;
      break;
    case worker::v1::LeaderMessage::kStoreValue:
      store_[message.store_value().key()] = message.store_value().value();
      break;
    case worker::v1::LeaderMessage::kPlan:
      if (!plans_.TryPush(std::move(*message.mutable_plan())) && !plans_.closed()) {
        EndWith(absl::InvalidArgumentError("the leader sent a plan too many"));
      }
      break;
    case worker::v1::LeaderMessage::kStop:
      EndWith(absl::OkStatus());
      break;
    case worker::v1::LeaderMessage::kAbort:
      EndWith(absl::UnavailableError(message.abort()));
      break;
    case worker::v1::LeaderMessage::kHeartbeat:
    case worker::v1::LeaderMessage::kChallenge:
    case worker::v1::LeaderMessage::CONTENT_NOT_SET:
      return;
  }
  changed_.notify_all();
}

void WorkerSession::StreamGone(const grpc::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  stream_gone_ = true;
  stream_status_ = status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the stream ended") : status;
  if (stage_ == Stage::kJoined) {
    EndWith(absl::UnavailableError(absl::StrCat("the leader is gone: ", stream_status_.error_message())));
  }
  changed_.notify_all();
}

void WorkerSession::EndWith(const absl::Status& status) {
  if (stage_ == Stage::kEnded) return;
  stage_ = Stage::kEnded;
  end_ = status;
  plans_.Close();
  changed_.notify_all();
}

// ---- the session thread ----

void WorkerSession::Watch() {
  const auto interval = std::min(options_.heartbeat_timeout / 5, milliseconds(1000));
  std::unique_lock<std::mutex> lock(mutex_);
  last_heard_ = steady_clock::now();
  worker::v1::WorkerMessage heartbeat;
  heartbeat.mutable_heartbeat();
  while (!changed_.wait_for(lock, interval, [this] { return stage_ == Stage::kEnded; })) {
    stream_->Send(heartbeat);
    if (const auto silence = steady_clock::now() - last_heard_; silence > options_.heartbeat_timeout) {
      EndWith(absl::UnavailableError(absl::StrFormat("the leader was silent for %.1f s",
                                                     std::chrono::duration<double>(silence).count())));
    }
  }
  if (end_.ok() || closing_) return;
  const std::function<void(const absl::Status&)> on_lost = on_lost_;
  const absl::Status end = end_;
  lock.unlock();
  if (on_lost) on_lost(end);
}

// ---- the owner ----

void WorkerSession::SetOnLost(std::function<void(const absl::Status&)> on_lost) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (stage_ != Stage::kEnded) {
    on_lost_ = std::move(on_lost);  // Watch calls it
    return;
  }
  if (end_.ok()) return;
  const absl::Status end = end_;
  lock.unlock();
  on_lost(end);
}

void WorkerSession::Send(worker::v1::WorkerMessage message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!stream_gone_) stream_->Send(std::move(message));
}

absl::Status WorkerSession::Set(const std::string& key, const std::string& value) {
  worker::v1::WorkerMessage message;
  message.mutable_store_set()->set_key(key);
  message.mutable_store_set()->set_value(value);
  Send(std::move(message));
  std::lock_guard<std::mutex> lock(mutex_);
  return stage_ == Stage::kEnded ? end_ : absl::OkStatus();
}

absl::StatusOr<std::string> WorkerSession::Get(const std::string& key, steady_clock::time_point deadline) {
  worker::v1::WorkerMessage message;
  message.mutable_store_get()->set_key(key);
  Send(std::move(message));
  std::unique_lock<std::mutex> lock(mutex_);
  const bool answered = changed_.wait_until(
      lock, deadline, [this, &key] { return store_.contains(key) || stage_ == Stage::kEnded; });
  if (const auto found = store_.find(key); found != store_.end()) return found->second;
  if (answered) return absl::UnavailableError(absl::StrCat("the group is over: ", end_.message()));
  return absl::DeadlineExceededError(absl::StrCat("no rank has set ", key));
}

void WorkerSession::ReportLoading(int64_t done_bytes, int64_t total_bytes) {
  worker::v1::WorkerMessage message;
  message.mutable_loading()->set_done_bytes(done_bytes);
  message.mutable_loading()->set_total_bytes(total_bytes);
  Send(std::move(message));
}

void WorkerSession::ReportReady(int block_count, int graph_count) {
  worker::v1::WorkerMessage message;
  message.mutable_ready()->set_block_count(block_count);
  message.mutable_ready()->set_graph_count(graph_count);
  Send(std::move(message));
}

void WorkerSession::ReportFailure(const absl::Status& status) {
  worker::v1::WorkerMessage message;
  message.set_failure(std::string(status.message()));
  std::unique_lock<std::mutex> lock(mutex_);
  if (stream_gone_) return;
  stream_->Send(std::move(message));
  changed_.wait_for(lock, kFailureGrace, [this] { return stream_gone_ || stage_ == Stage::kEnded; });
}

void WorkerSession::SendResult(absl::StatusOr<RankResult> result) {
  if (result.ok()) {
    worker::v1::WorkerMessage message;
    message.set_result(EncodeResult(*result));
    Send(std::move(message));
    return;
  }
  ReportFailure(result.status());
  std::lock_guard<std::mutex> lock(mutex_);
  EndWith(result.status());
}

absl::Status WorkerSession::Run(Executor& executor, int index, const PlanLimits& limits) {
  RunPlans(plans_, index, limits, executor,
           [this](absl::StatusOr<RankResult> result) { SendResult(std::move(result)); });
  std::lock_guard<std::mutex> lock(mutex_);
  return end_;
}

}  // namespace foredraft
