#include "server/frontend.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <malloc.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "config/config_check.h"
#include "server/output/request_log.h"
#include "server/port_probe.h"
#include "server/wires.h"

namespace foredraft {
namespace {

constexpr std::chrono::milliseconds kLastWrites(500);

constexpr int kAdminConnections = 64;
constexpr int kPageConnections = 256;
constexpr int kDescriptorsEach = 3;  // of a connection: the client's, and the guard's pair of sockets
constexpr int kHttpThreads = 2;      // move bytes and write JSON
constexpr int kHttpWorkers = 2;      // read JSON and tokenize
// Beyond these, the connection that has waited longest is closed for a new one: a probe gets in, whatever
// else is connected.
constexpr int kWaitingPages = 128;
constexpr int kWaitingPagesPerAddress = 64;
constexpr std::chrono::seconds kServerAnswer(2);
constexpr int kFailedProbes = 3;  // in a row, until /healthz says so
constexpr std::chrono::hours kExpiryPeriod(24);
constexpr std::chrono::seconds kMemoryPeriod(10);

HttpAnswer Refuse(const absl::Status& status) {
  if (!absl::IsUnauthenticated(status)) return {.status = 403, .body = absl::StrCat(status.message(), "\n")};
  return {.status = 401,
          .body = absl::StrCat(status.message(), "\n"),
          .headers = {{"WWW-Authenticate", "Bearer"}}};
}

std::vector<std::string> WatchedFiles(const ServerConfig& config) {
  return {config.auth.tokens_file, config.tls.cert, config.tls.key, config.tls.client_ca};
}

HttpLimits PageLimits() {
  HttpLimits limits;
  limits.max_body_bytes = 0;
  limits.head_timeout = limits.idle_timeout = std::chrono::seconds(5);
  limits.max_waiting = kWaitingPages;
  limits.max_waiting_per_address = kWaitingPagesPerAddress;
  return limits;
}

HttpLimits ApiLimits(const ServerConfig& config) {
  HttpLimits limits;
  limits.max_body_bytes = int64_t{config.max_message_mib} << 20;
  limits.body_budget_bytes = int64_t{config.memory_quota_mib} << 20;
  limits.handshake_timeout = std::chrono::seconds(config.handshake_timeout_s);
  limits.max_waiting = std::max(config.max_connections / 2, 1);
  limits.max_waiting_per_address = std::max(config.max_connections / 4, 1);
  // Strangers' handshakes leave three quarters of the quota to bodies.
  const auto handshakes = static_cast<int>(limits.body_budget_bytes / 4 / kHandshakeBytes);
  limits.max_handshakes = std::min(limits.max_waiting, handshakes);
  limits.max_handshakes_per_address = std::min(limits.max_waiting_per_address, std::max(handshakes / 2, 1));
  return limits;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Frontend>> Frontend::Listen(const FrontendOptions& options,
                                                           const AdminHooks& hooks) {
  KeepMemoryReserve();
  std::unique_ptr<Frontend> frontend(new Frontend(options, hooks));
  RETURN_IF_ERROR(frontend->LoadFiles());
  RETURN_IF_ERROR(frontend->ListenMetrics());
  RETURN_IF_ERROR(frontend->ListenGrpc());
  RETURN_IF_ERROR(frontend->ListenAdmin());
  RETURN_IF_ERROR(frontend->ListenGateway());
  RETURN_IF_ERROR(frontend->ListenHttp());
  frontend->StartWatchdog();
  return frontend;
}

Frontend::Frontend(const FrontendOptions& options, const AdminHooks& hooks)
    : options_(options),
      metrics_(std::make_shared<Metrics>(options.metrics)),
      wires_(std::make_unique<Wires>(options, hooks,
                                     WireContext{.everyone = everyone_,
                                                 .tokens = tokens_,
                                                 .health = health_,
                                                 .metrics = *metrics_,
                                                 .load = [this] { return ServerLoadNow(); }})),
      connections_(ConnectionsLeft("server.max_connections", options.server.max_connections,
                                   options.reserved_descriptors, kDescriptorsEach)),
      admin_connections_(kAdminConnections),
      guard_(connections_, [this](GuardEvent event) { metrics_->RecordGuard(event); }),
      admin_guard_(admin_connections_, [this](GuardEvent event) { metrics_->RecordGuard(event); }),
      // Probes have no tokens, and what they are told is no secret.
      pages_({{"/metrics", [this](const HttpRequest& head) { return MetricsAnswer(head); }},
              {"/healthz", [this](const HttpRequest&) { return Live(); }},
              {"/readyz", [this](const HttpRequest&) { return Ready(); }}}),
      page_connections_(kPageConnections),
      watched_files_(WatchedFiles(options.server)) {
  tokens_.OnRefused([this](TokenRefusal cause) { metrics_->RecordTokenRefused(cause); });
  for (Access* const access : {&everyone_, &tokens_}) {
    access->OnAdmitted([this](std::string_view connection) {
      guard_.Admitted(connection);
      admin_guard_.Admitted(connection);
    });
  }
}

Frontend::~Frontend() { Shutdown(); }

bool Frontend::WaitForNoCalls(SteadyTime deadline) const {
  return wires_->admission.WaitForNoCalls(deadline);
}

void Frontend::SetRequestTimeout(int seconds) { wires_->admission.SetRequestTimeout(seconds); }

int Frontend::open_calls() const { return wires_->admission.open_calls(); }

absl::Status Frontend::LoadFiles() {
  if (const std::string& file = options_.server.auth.tokens_file; !file.empty()) {
    ASSIGN_OR_RETURN(TokenTable table, TokenTable::Read(file));
    tokens_.Require(std::move(table));
  }
  ASSIGN_OR_RETURN(certificates_, Certificates::Load(options_.server.tls));
  metrics_->SetCertificateExpiry(certificates_->expiry_seconds());
  return absl::OkStatus();
}

absl::Status Frontend::ListenMetrics() {
  if (options_.server.metrics_address.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(metrics_listener_, HttpListener::Open({.key = "server.metrics_address",
                                                          .address = options_.server.metrics_address,
                                                          .service = &pages_,
                                                          .connections = &page_connections_,
                                                          .refused = [] {},
                                                          .limits = PageLimits(),
                                                          .browsers = PageRules()}));
  return absl::OkStatus();
}

// A listener that only this host's processes reach, and that asks them for no token, must not serve a page in
// their browsers under whatever name the page has.
BrowserRules Frontend::PageRules() const {
  BrowserRules rules{.origins = {}, .asks_for_known_host = nullptr, .hosts = options_.server.http_hosts};
  if (IsLoopback(options_.server.metrics_address)) {
    rules.asks_for_known_host = [this] { return !tokens_.HasRole(Role::kMetrics); };
  }
  return rules;
}

BrowserRules Frontend::ApiRules() const {
  const ServerConfig& server = options_.server;
  BrowserRules rules{
      .origins = server.cors_origins, .asks_for_known_host = nullptr, .hosts = server.http_hosts};
  if (IsLoopback(server.http_address) && server.auth.tokens_file.empty()) {
    rules.asks_for_known_host = [] { return true; };
  }
  return rules;
}

HttpAnswer Frontend::MetricsAnswer(const HttpRequest& head) const {
  if (tokens_.HasRole(Role::kMetrics)) {
    const std::string_view authorization = head.Header("authorization");
    const absl::Status allowed = tokens_.Check(authorization, Role::kMetrics).status();
    if (!allowed.ok()) {
      HttpAnswer refusal = Refuse(allowed);
      refusal.delay = tokens_.HoldBack(allowed, authorization, ClientOf(head.peer));
      return refusal;
    }
  }
  return {.body = MetricsPage(*metrics_), .content_type = kMetricsPageType};
}

absl::Status Frontend::ListenHttp() {
  if (options_.server.http_address.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const ServerPems certificate, ReadServerPems(options_.server.tls));
  ASSIGN_OR_RETURN(http_listener_,
                   HttpListener::Open({.key = "server.http_address",
                                       .address = options_.server.http_address,
                                       .service = &wires_->page,
                                       .connections = &connections_,
                                       .refused = [this] { metrics_->RecordRefusedConnection(); },
                                       .limits = ApiLimits(options_.server),
                                       .browsers = ApiRules(),
                                       .certificate = certificate,
                                       .io_threads = kHttpThreads,
                                       .workers = kHttpWorkers}));
  return absl::OkStatus();
}

absl::Status Frontend::ListenGrpc() {
  if (options_.server.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  ASSIGN_OR_RETURN(
      grpc_, GrpcListener::Open(options_.server, {.key = "server.grpc_address",
                                                  .address = options_.server.grpc_address,
                                                  .services = wires_->api_services(),
                                                  .connections = &connections_,
                                                  .refused = [this] { metrics_->RecordRefusedConnection(); },
                                                  .guard = &guard_,
                                                  .tls = [this] { return certificates_->http2_context(); }}));
  AttachHealth();
  return absl::OkStatus();
}

absl::Status Frontend::ListenAdmin() {
  const std::string& address = options_.server.admin_address;
  if (!HasAdminListener(options_.server)) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<GrpcListener>> opened =
      GrpcListener::Open(options_.server, {.key = "server.admin_address",
                                           .address = address,
                                           .services = wires_->admin_services(),
                                           .connections = &admin_connections_,
                                           .refused = [] {},
                                           .private_socket = true,
                                           .guard = IsUnixAddress(address) ? nullptr : &admin_guard_,
                                           .tls = [this] { return certificates_->http2_context(); }});
  if (!opened.ok()) {
    if (!options_.admin_is_default) return opened.status();
    Log(LogLevel::kWarning, "no admin listener: %s; SIGTERM drains and SIGHUP reloads",
        opened.status().message());
    return absl::OkStatus();
  }
  admin_listener_ = *std::move(opened);
  AttachHealth();
  return absl::OkStatus();
}

absl::Status Frontend::ListenGateway() {
  if (!wires_->has_gateway) return absl::OkStatus();
  ASSIGN_OR_RETURN(gateway_, GrpcListener::Open(options_.server,
                                                {.key = "server.gateway_address",
                                                 .address = options_.server.gateway_address,
                                                 .services = wires_->gateway_services(),
                                                 .connections = &connections_,
                                                 .refused = [this] { metrics_->RecordRefusedConnection(); },
                                                 .guard = &guard_}));
  AttachHealth();
  return absl::OkStatus();
}

void Frontend::AttachHealth() {
  std::vector<HealthService*> services;
  for (GrpcListener* listener : {grpc_.get(), admin_listener_.get(), gateway_.get()}) {
    if (listener != nullptr) services.push_back(&listener->health());
  }
  health_.Attach(std::move(services));
  metrics_->ReadStateFrom([this] { return std::string(ServingStateName(health_.state())); });
}

void Frontend::StartWatchdog() {
  watchdog_ = std::make_unique<PeriodicThread>(
      "listeners", std::vector<PeriodicThread::Job>{
                       {options_.probe_period, [this] { ProbeOwnPort(); }},
                       {options_.file_period, [this] { ReloadChangedFiles(); }},
                       {options_.file_period, [this] { metrics_->SetConnections(connections_.open()); }},
                       {kMemoryPeriod, [this] { GiveMemoryBack(); }},
                       {kExpiryPeriod, [this] { certificates_->WarnOfExpiry(); }}});
}

void Frontend::ProbeOwnPort() {
  absl::Status answer =
      Probe({.address = grpc_address(), .tls = certificates_->encrypts(), .dials_from = [this](int port) {
               grpc_->acceptor().ExpectOwn(port);
             }});
  // Under TLS the answer is the guard's.
  if (answer.ok() && certificates_->encrypts()) answer = ProbeServer(grpc_->Dial(), kServerAnswer);
  if (answer.ok()) {
    if (failed_probes_.exchange(0) > 0) Log(LogLevel::kInfo, "server.grpc_address answers again");
    return;
  }
  metrics_->RecordPortProbeFailure();
  const int failed = failed_probes_.fetch_add(1) + 1;
  Log(LogLevel::kError, "server.grpc_address: %s: does not answer this process itself, %d in a row: %s",
      grpc_address(), failed, answer.message());
}

void Frontend::ReloadChangedFiles() {
  if (watched_files_.Changed()) ReloadFiles();
}

// After a flood the allocator keeps what it took: gRPC has freed it in pieces between which others are in
// use, and a thread of HTTP in an area of its own. After a shortage the reserve is filled again.
void Frontend::GiveMemoryBack() {
  bool flood = guard_.TakeFlood();
  flood |= admin_guard_.TakeFlood();
  for (HttpListener* listener : {metrics_listener_.get(), http_listener_.get()}) {
    flood |= listener != nullptr && listener->TakeFlood();
  }
  if (flood) malloc_trim(0);
  if (RefillMemoryReserve()) {
    Log(LogLevel::kWarning, "out of memory: the reserve was needed; requests may have been refused");
  }
}

void Frontend::ReloadFiles() {
  if (const std::string& file = options_.server.auth.tokens_file; !file.empty()) {
    if (absl::StatusOr<TokenTable> table = TokenTable::Read(file); table.ok()) {
      Log(LogLevel::kInfo, "server.auth.tokens_file: %s: %d tokens", file, table->size());
      tokens_.Require(*std::move(table));
    } else {
      metrics_->RecordReload(/*accepted=*/false);
      Log(LogLevel::kError, "the tokens in force stay: %s", table.status().message());
    }
  }
  if (!certificates_->encrypts()) return;
  if (const absl::Status status = certificates_->Reload(); !status.ok()) {
    Log(LogLevel::kError, "the certificate in use stays: %s", status.message());
    return;
  }
  if (http_listener_ != nullptr) {
    absl::StatusOr<ServerPems> pems = ReadServerPems(options_.server.tls);
    const absl::Status status = pems.ok() ? http_listener_->SetCertificate(*pems) : pems.status();
    if (!status.ok()) Log(LogLevel::kError, "http: the certificate in use stays: %s", status.message());
  }
  Log(LogLevel::kInfo, "server.tls.cert: %s: read again", options_.server.tls.cert);
  certificates_->WarnOfExpiry();
  metrics_->SetCertificateExpiry(certificates_->expiry_seconds());
}

HttpAnswer Frontend::Live() const {
  if (failed_probes_.load() >= kFailedProbes) {
    return {.status = 503, .body = absl::StrCat(options_.server.grpc_address, " does not answer\n")};
  }
  const std::optional<SteadyTime> turn = last_turn();
  if (turn.has_value() && std::chrono::steady_clock::now() - *turn > options_.longest_turn) {
    return {.status = 503, .body = "the scheduler or the output thread hangs\n"};
  }
  return {.status = 200, .body = "live\n"};
}

HttpAnswer Frontend::Ready() const {
  const ServingState state = health_.state();
  return {.status = state == ServingState::kServing ? 200 : 503,
          .body = absl::StrCat(ServingStateName(state), "\n")};
}

void Frontend::Serve(ServedModel model) {
  CHECK(loop_ == nullptr) << "Serve was called twice";
  tokenizer_ = std::move(model.tokenizer);
  std::string no_chat;
  if (absl::StatusOr<ChatFormat> format = ChatFormat::Create(*tokenizer_, model.chat_format); format.ok()) {
    chat_format_ = *std::move(format);
  } else {
    no_chat = std::string(format.status().message());
    Log(LogLevel::kInfo, "chat requests are refused: %s", no_chat);
  }
  const bool forced = model.scheduler.acceptance.forced_length > 0;
  StartConstraints(model.limits, forced);
  validator_ = std::make_unique<RequestValidator>(std::move(model.limits), *tokenizer_,
                                                  chat_format_.has_value() ? &*chat_format_ : nullptr,
                                                  no_chat, constraints_.get());
  output_ = std::make_unique<OutputThread>(
      options_.output, *metrics_, [this](uint64_t id, FinishReason reason) { loop_->Cancel(id, reason); });
  loop_ = std::make_unique<ServingLoop>(
      model.loop, std::make_unique<Scheduler>(model.scheduler), std::move(model.executors),
      [this](std::vector<RequestUpdate> updates) { output_->Deliver(std::move(updates)); },
      [this](const IterationStats& stats) { metrics_->RecordIteration(stats); });
  loop_->Start();
  serving_loop_.store(loop_.get());
  metrics_->ReadLoadFrom([this] { return Load(); });
  wires_->admission.Open({.tokenizer = tokenizer_.get(),
                          .validator = validator_.get(),
                          .loop = loop_.get(),
                          .output = output_.get(),
                          .model = std::move(model.card)});
  metrics_->SetForced(forced);
  health_.Enter(ServingState::kServing);
}

void Frontend::StartConstraints(const RequestLimits& limits, bool forced) {
  std::shared_ptr<const Vocabulary> vocabulary;
  if (options_.constraints) {
    auto made = MakeVocabulary(*tokenizer_, limits.vocab_size, limits.eos_ids);
    if (made.ok()) {
      vocabulary = *std::move(made);
    } else {
      Log(LogLevel::kWarning, "structured output is refused: %s", made.status().message());
    }
  }
  constraints_ = std::make_unique<ConstraintCompiler>(std::move(vocabulary), options_.constraints, *metrics_);
  constraints_->SetForced(forced);
  metrics_->ReadConstraintsFrom([this] { return constraints_->counts(); });
}

ServerLoad Frontend::ServerLoadNow() const {
  return {.scheduler = Load(), .open_calls = open_calls(), .state = health_.state()};
}

SchedulerLoad Frontend::Load() const {
  const ServingLoop* loop = serving_loop_.load();
  return loop == nullptr ? SchedulerLoad{} : loop->load();
}

std::optional<SteadyTime> Frontend::last_turn() const {
  const ServingLoop* loop = serving_loop_.load();
  const ServingState state = health_.state();
  if (loop == nullptr || state == ServingState::kLoading || state == ServingState::kFailed) {
    return std::nullopt;
  }
  return std::min(loop->last_turn(), output_->last_turn());
}

absl::Status Frontend::CheckRanks() {
  const ServingLoop* loop = serving_loop_.load();
  const absl::Status status = loop == nullptr ? absl::OkStatus() : loop->health();
  if (!status.ok() && !rank_lost_) {
    rank_lost_ = true;
    health_.Enter(ServingState::kFailed);
    metrics_->RecordRankFailure();
  }
  return status;
}

void Frontend::Resume() {
  loop_->Restart();
  rank_lost_ = false;
  metrics_->RecordGroupRestart();
  health_.Enter(ServingState::kServing);
}

void Frontend::GiveUp(const absl::Status& error) {
  loop_->GiveUp(error);
  WaitForNoCalls(std::chrono::steady_clock::now() + kLastWrites);
}

std::string Frontend::grpc_address() const { return grpc_ == nullptr ? "" : grpc_->address(); }

std::string Frontend::gateway_address() const { return gateway_ == nullptr ? "" : gateway_->address(); }

std::string Frontend::admin_address() const {
  return admin_listener_ == nullptr ? "" : admin_listener_->address();
}

std::string Frontend::metrics_address() const {
  return metrics_listener_ == nullptr ? "" : metrics_listener_->address();
}

std::string Frontend::http_address() const {
  return http_listener_ == nullptr ? "" : http_listener_->address();
}

void Frontend::SetSpeculation(const Speculation& speculation, const ThinkingIds& thinking) {
  metrics_->SetForced(speculation.acceptance.forced_length > 0);
  ServingLoop* const loop = serving_loop_.load();
  if (loop == nullptr) return;  // loading: the daemon calls this again afterwards
  loop->SetSpeculation(speculation);
  validator_->SetThinking(thinking);
  constraints_->SetForced(speculation.acceptance.forced_length > 0);
}

void Frontend::SetConstraints(const std::optional<ConstraintsConfig>& constraints) {
  if (serving_loop_.load() == nullptr) return;  // loading: the daemon calls this again afterwards
  constraints_->SetConfig(constraints);
}

void Frontend::SetMaxQueueSize(int max_queue_size) {
  wires_->admission.SetMaxQueueSize(max_queue_size);
  if (ServingLoop* loop = serving_loop_.load(); loop != nullptr) loop->SetMaxQueueSize(max_queue_size);
}

void Frontend::Shutdown() {
  if (grpc_ == nullptr) return;
  watchdog_.reset();
  BeginDrain();
  wires_->admission.EndTokenizing();
  if (output_ != nullptr) {
    output_->EndAll(absl::UnavailableError("draining: the daemon stopped before the request ended"));
    WaitForNoCalls(std::chrono::steady_clock::now() + kLastWrites);
  }
  health_.Attach({});
  metrics_->ReadStateFrom([state = std::string(ServingStateName(health_.state()))] { return state; });
  for (GrpcListener* listener : {grpc_.get(), admin_listener_.get(), gateway_.get()}) {
    if (listener != nullptr) listener->Shutdown();
  }
  if (http_listener_ != nullptr) http_listener_->Shutdown();
  if (metrics_listener_ != nullptr) metrics_listener_->Shutdown();
  guard_.Stop();
  admin_guard_.Stop();
  if (loop_ != nullptr) loop_->Stop();
  if (output_ != nullptr) output_->Stop();
  grpc_.reset();
  admin_listener_.reset();
  gateway_.reset();
  http_listener_.reset();
  metrics_listener_.reset();
}

}  // namespace foredraft
