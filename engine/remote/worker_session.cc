#include "engine/remote/worker_session.h"

#include <grpcpp/create_channel.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log.h"
#include "engine/remote/plan_codec.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kPlansInFlight = 2;  // engine/README.md, one-in-flight
constexpr milliseconds kDialPause(200);
constexpr std::chrono::seconds kSayAgain(10);  // how often a waiting worker says so
constexpr milliseconds kLastWords(1000);       // for a failure to reach the leader
constexpr std::chrono::hours kUntilTheEnd(1);  // then again: the session's end closes the queues

std::shared_ptr<grpc::Channel> OpenChannel(const WorkerOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(options.leader, options.credentials, arguments);
}

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

// ---- the stream ----

WorkerSession::Link::Link(WorkerSession& session, v1::WorkerService::Stub& stub, v1::WorkerMessage join)
    : session_(session) {
  stub.async()->Work(&context_, this);
  AddHold();  // until the outbox says kEnd: others may write
  StartRead(&incoming_);
  StartCall();
  Send(std::move(join));
}

void WorkerSession::Link::Cut() {
  outbox_.Break();
  context_.TryCancel();
  End();
}

void WorkerSession::Link::OnReadDone(bool ok) {
  if (!ok) return End();
  session_.Receive(std::move(incoming_));
  incoming_.Clear();
  StartRead(&incoming_);
}

void WorkerSession::Link::OnWriteDone(bool ok) { Start(outbox_.Written(ok)); }

void WorkerSession::Link::OnDone(const grpc::Status& status) { session_.LinkGone(status); }

void WorkerSession::Link::Start(Outbox<v1::WorkerMessage>::Next next) {
  switch (next) {
    case Outbox<v1::WorkerMessage>::Next::kWrite:
      StartWrite(&outbox_.current());
      break;
    case Outbox<v1::WorkerMessage>::Next::kEnd:
      StartWritesDone();
      RemoveHold();
      break;
    case Outbox<v1::WorkerMessage>::Next::kNothing:
      break;
  }
}

// ---- joining ----

absl::StatusOr<std::unique_ptr<WorkerSession>> WorkerSession::Join(const WorkerOptions& options) {
  std::unique_ptr<WorkerSession> session(new WorkerSession(options));
  if (absl::Status status = session->Dial(); !status.ok()) return status;
  session->thread_ = std::thread([session = session.get()] { session->Watch(); });
  pthread_setname_np(session->thread_.native_handle(), "session");
  return session;
}

WorkerSession::WorkerSession(const WorkerOptions& options)
    : options_(options),
      channel_(OpenChannel(options)),
      stub_(v1::WorkerService::NewStub(channel_)),
      plans_(kPlansInFlight) {}

WorkerSession::~WorkerSession() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    EndWith(absl::UnavailableError("the worker has stopped"));
  }
  CutLink();
  if (thread_.joinable()) thread_.join();
}

// Without the lock: gRPC may call back before Cut returns.
void WorkerSession::CutLink() {
  if (link_ == nullptr) return;
  link_->Cut();
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return link_gone_; });  // gRPC's promise after a cut
}

v1::WorkerMessage WorkerSession::JoinMessage() const {
  v1::WorkerMessage message;
  v1::WorkerJoin* join = message.mutable_join();
  join->set_rank(options_.rank);
  join->set_version(options_.identity.version);
  join->set_model_hash(options_.identity.model_hash);
  join->set_config_hash(ConfigHash(options_.identity.config_keys));
  for (const std::string& key : options_.identity.config_keys) join->add_config_keys(key);
  join->set_numerics_class(options_.identity.numerics_class);
  join->set_device(options_.device);
  join->set_host(HostName());
  join->set_pid(getpid());
  return message;
}

absl::Status WorkerSession::Dial() {
  const auto deadline = steady_clock::now() + options_.join_timeout;
  auto next_line = steady_clock::now();
  while (true) {
    const absl::Status status = DialOnce();
    if (status.ok() || status.code() == absl::StatusCode::kFailedPrecondition) return status;
    const auto now = steady_clock::now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrFormat(
          "no group at %s within %d s: %s", options_.leader,
          std::chrono::duration_cast<std::chrono::seconds>(options_.join_timeout).count(), status.message()));
    }
    if (now >= next_line) {
      Log(LogLevel::kInfo, "rank %d waits for the leader at %s: %s", options_.rank, options_.leader,
          status.message());
      next_line = now + kSayAgain;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kDialPause, [this] { return closing_; });
  }
}

absl::Status WorkerSession::DialOnce() {
  std::unique_lock<std::mutex> lock(mutex_);
  stage_ = Stage::kDialing;
  link_gone_ = false;
  lock.unlock();
  auto link = std::make_unique<Link>(*this, *stub_, JoinMessage());
  lock.lock();
  link_ = std::move(link);
  const auto answered = [this] { return stage_ != Stage::kDialing || link_gone_; };
  if (!changed_.wait_for(lock, options_.heartbeat_timeout, answered)) {
    lock.unlock();
    CutLink();
    lock.lock();
  }
  if (stage_ == Stage::kJoined) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(link_status_.error_code()), link_status_.error_message());
}

// ---- what gRPC calls ----

void WorkerSession::Receive(v1::LeaderMessage message) {
  std::lock_guard<std::mutex> lock(mutex_);
  last_heard_ = steady_clock::now();
  switch (message.content_case()) {
    case v1::LeaderMessage::kWelcome:
      stage_ = Stage::kJoined;
      break;
    case v1::LeaderMessage::kStoreValue:
      store_[message.store_value().key()] = message.store_value().value();
      break;
    case v1::LeaderMessage::kPlan:
      CHECK(plans_.TryPush(std::move(*message.mutable_plan())) || plans_.closed()) << "one-in-flight";
      break;
    case v1::LeaderMessage::kStop:
      EndWith(absl::OkStatus());
      break;
    case v1::LeaderMessage::kAbort:
      EndWith(absl::UnavailableError(message.abort()));
      break;
    case v1::LeaderMessage::kHeartbeat:
    case v1::LeaderMessage::CONTENT_NOT_SET:
      return;
  }
  changed_.notify_all();
}

void WorkerSession::LinkGone(const grpc::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  link_gone_ = true;
  link_status_ = status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the stream ended") : status;
  if (stage_ == Stage::kJoined) {
    EndWith(absl::UnavailableError(absl::StrCat("the leader is gone: ", link_status_.error_message())));
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
  v1::WorkerMessage heartbeat;
  heartbeat.mutable_heartbeat();
  while (!changed_.wait_for(lock, interval, [this] { return stage_ == Stage::kEnded; })) {
    link_->Send(heartbeat);
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
  on_lost_ = std::move(on_lost);
  if (stage_ != Stage::kEnded || end_.ok()) return;
  const std::function<void(const absl::Status&)> late = on_lost_;
  const absl::Status end = end_;
  lock.unlock();
  late(end);
}

void WorkerSession::Send(v1::WorkerMessage message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!link_gone_) link_->Send(std::move(message));
}

absl::Status WorkerSession::Set(const std::string& key, const std::string& value) {
  v1::WorkerMessage message;
  message.mutable_store_set()->set_key(key);
  message.mutable_store_set()->set_value(value);
  Send(std::move(message));
  std::lock_guard<std::mutex> lock(mutex_);
  return stage_ == Stage::kEnded ? end_ : absl::OkStatus();
}

absl::StatusOr<std::string> WorkerSession::Get(const std::string& key, steady_clock::time_point deadline) {
  v1::WorkerMessage message;
  message.mutable_store_get()->set_key(key);
  Send(std::move(message));
  std::unique_lock<std::mutex> lock(mutex_);
  const bool answered = changed_.wait_until(
      lock, deadline, [this, &key] { return store_.contains(key) || stage_ == Stage::kEnded; });
  if (const auto found = store_.find(key); found != store_.end()) return found->second;
  if (answered) return absl::UnavailableError(absl::StrCat("the group is over: ", end_.message()));
  return absl::DeadlineExceededError(absl::StrCat("nobody has set ", key));
}

void WorkerSession::ReportLoading(int64_t done_bytes, int64_t total_bytes) {
  v1::WorkerMessage message;
  message.mutable_loading()->set_done_bytes(done_bytes);
  message.mutable_loading()->set_total_bytes(total_bytes);
  Send(std::move(message));
}

void WorkerSession::ReportReady(int block_count, int graph_count) {
  v1::WorkerMessage message;
  message.mutable_ready()->set_block_count(block_count);
  message.mutable_ready()->set_graph_count(graph_count);
  Send(std::move(message));
}

void WorkerSession::ReportFailure(const absl::Status& status) {
  v1::WorkerMessage message;
  message.set_failure(std::string(status.message()));
  std::unique_lock<std::mutex> lock(mutex_);
  if (link_gone_) return;
  link_->Send(std::move(message));
  changed_.wait_for(lock, kLastWords, [this] { return link_gone_ || stage_ == Stage::kEnded; });
}

// A failed launch takes its place in the queue, behind the results of what was launched before.
void WorkerSession::LaunchPlans(Executor& executor, BoundedQueue<absl::Status>& launched) {
  while (true) {
    std::optional<v1::WorkerPlan> message = plans_.Pop(kUntilTheEnd);
    if (!message) {
      if (plans_.closed()) break;
      continue;
    }
    CHECK(launched.TryPush(executor.Launch(DecodePlan(*message, options_.rank)))) << "one-in-flight";
  }
  launched.Close();
}

absl::Status WorkerSession::Run(Executor& executor) {
  BoundedQueue<absl::Status> launched(kPlansInFlight);
  std::thread launcher([this, &executor, &launched] { LaunchPlans(executor, launched); });
  pthread_setname_np(launcher.native_handle(), "launcher");
  while (true) {
    const std::optional<absl::Status> status = launched.Pop(kUntilTheEnd);
    if (!status) {
      if (launched.closed()) break;
      continue;
    }
    const absl::StatusOr<RankResult> result = status->ok() ? executor.Collect() : *status;
    if (result.ok()) {
      v1::WorkerMessage message;
      *message.mutable_result() = EncodeResult(*result);
      Send(std::move(message));
    } else {
      ReportFailure(result.status());
      std::lock_guard<std::mutex> lock(mutex_);
      EndWith(result.status());
    }
  }
  launcher.join();
  std::lock_guard<std::mutex> lock(mutex_);
  return end_;
}

}  // namespace foredraft
