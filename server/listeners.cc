#include "server/listeners.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <malloc.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "config/config_check.h"
#include "server/port_probe.h"
#include "server/wires.h"

namespace foredraft {
namespace {

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
constexpr int kFailedProbes = 3;  // in a row, after which /healthz fails
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
  limits.keepalive = std::chrono::seconds(config.stream_keepalive_s);
  limits.max_waiting = std::max(config.max_connections / 2, 1);
  limits.max_waiting_per_address = std::max(config.max_connections / 4, 1);
  // Strangers' handshakes leave three quarters of the quota to bodies.
  const auto handshakes = static_cast<int>(limits.body_budget_bytes / 4 / kHandshakeBytes);
  limits.max_handshakes = std::min(limits.max_waiting, handshakes);
  limits.max_handshakes_per_address = std::min(limits.max_waiting_per_address, std::max(handshakes / 2, 1));
  return limits;
}

}  // namespace

Listeners::Listeners(const FrontendOptions& options, Health& health, Metrics& metrics, LastTurn last_turn)
    : options_(options),
      health_(health),
      metrics_(metrics),
      last_turn_(std::move(last_turn)),
      connections_(ConnectionsLeft("server.max_connections", options.server.max_connections,
                                   options.reserved_descriptors, kDescriptorsEach)),
      admin_connections_(kAdminConnections),
      guard_(connections_, [this](GuardEvent event) { metrics_.RecordGuard(event); }),
      admin_guard_(admin_connections_, [this](GuardEvent event) { metrics_.RecordGuard(event); }),
      // Probes have no tokens, and what they are told is no secret.
      pages_({{"/metrics", [this](const HttpRequest& head) { return MetricsAnswer(head); }},
              {"/healthz", [this](const HttpRequest&) { return Live(); }},
              {"/readyz", [this](const HttpRequest&) { return Ready(); }}}),
      page_connections_(kPageConnections),
      watched_files_(WatchedFiles(options.server)) {
  tokens_.OnRefused([this](TokenRefusal cause) { metrics_.RecordTokenRefused(cause); });
  for (Access* const access : {&everyone_, &tokens_}) {
    access->OnAdmitted([this](std::string_view connection) {
      guard_.Admitted(connection);
      admin_guard_.Admitted(connection);
    });
  }
}

absl::Status Listeners::Open(Wires& wires) {
  RETURN_IF_ERROR(LoadFiles());
  RETURN_IF_ERROR(OpenMetrics());
  RETURN_IF_ERROR(OpenGrpc(wires));
  RETURN_IF_ERROR(OpenAdmin(wires));
  RETURN_IF_ERROR(OpenGateway(wires));
  RETURN_IF_ERROR(OpenHttp(wires));
  StartWatch();
  return absl::OkStatus();
}

absl::Status Listeners::LoadFiles() {
  if (const std::string& file = options_.server.auth.tokens_file; !file.empty()) {
    ASSIGN_OR_RETURN(TokenTable table, TokenTable::Read(file));
    tokens_.Require(std::move(table));
  }
  ASSIGN_OR_RETURN(certificates_, Certificates::Load(options_.server.tls));
  metrics_.SetCertificateExpiry(certificates_->expiry_seconds());
  return absl::OkStatus();
}

absl::Status Listeners::OpenMetrics() {
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

// If only this host's processes reach a listener, and it asks them for no token, it must not answer pages in
// their browsers that reach it under an unknown name (DNS rebinding).
BrowserRules Listeners::PageRules() const {
  BrowserRules rules{.origins = {}, .asks_for_known_host = nullptr, .hosts = options_.server.http_hosts};
  if (IsLoopback(options_.server.metrics_address)) {
    rules.asks_for_known_host = [this] { return !tokens_.HasRole(Role::kMetrics); };
  }
  return rules;
}

BrowserRules Listeners::ApiRules() const {
  const ServerConfig& server = options_.server;
  BrowserRules rules{
      .origins = server.cors_origins, .asks_for_known_host = nullptr, .hosts = server.http_hosts};
  if (IsLoopback(server.http_address) && server.auth.tokens_file.empty()) {
    rules.asks_for_known_host = [] { return true; };
  }
  return rules;
}

HttpAnswer Listeners::MetricsAnswer(const HttpRequest& head) const {
  if (tokens_.HasRole(Role::kMetrics)) {
    const std::string_view authorization = head.Header("authorization");
    const absl::Status allowed = tokens_.Check(authorization, Role::kMetrics).status();
    if (!allowed.ok()) {
      HttpAnswer refusal = Refuse(allowed);
      refusal.delay = tokens_.HoldBack(allowed, authorization, ClientOf(head.peer));
      return refusal;
    }
  }
  return {.body = MetricsPage(metrics_), .content_type = kMetricsPageType};
}

absl::Status Listeners::OpenHttp(Wires& wires) {
  if (options_.server.http_address.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const ServerPems certificate, ReadServerPems(options_.server.tls));
  ASSIGN_OR_RETURN(http_listener_,
                   HttpListener::Open({.key = "server.http_address",
                                       .address = options_.server.http_address,
                                       .service = &wires.page,
                                       .connections = &connections_,
                                       .refused = [this] { metrics_.RecordRefusedConnection(); },
                                       .limits = ApiLimits(options_.server),
                                       .browsers = ApiRules(),
                                       .certificate = certificate,
                                       .io_threads = kHttpThreads,
                                       .workers = kHttpWorkers}));
  return absl::OkStatus();
}

absl::Status Listeners::OpenGrpc(Wires& wires) {
  if (options_.server.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  ASSIGN_OR_RETURN(
      grpc_, GrpcListener::Open(options_.server, {.key = "server.grpc_address",
                                                  .address = options_.server.grpc_address,
                                                  .services = wires.api_services(),
                                                  .connections = &connections_,
                                                  .refused = [this] { metrics_.RecordRefusedConnection(); },
                                                  .guard = &guard_,
                                                  .tls = [this] { return certificates_->http2_context(); }}));
  AttachHealth();
  return absl::OkStatus();
}

absl::Status Listeners::OpenAdmin(Wires& wires) {
  const std::string& address = options_.server.admin_address;
  if (!HasAdminListener(options_.server)) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<GrpcListener>> opened =
      GrpcListener::Open(options_.server, {.key = "server.admin_address",
                                           .address = address,
                                           .services = wires.admin_services(),
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

absl::Status Listeners::OpenGateway(Wires& wires) {
  if (!wires.has_gateway) return absl::OkStatus();
  ASSIGN_OR_RETURN(gateway_, GrpcListener::Open(options_.server,
                                                {.key = "server.gateway_address",
                                                 .address = options_.server.gateway_address,
                                                 .services = wires.gateway_services(),
                                                 .connections = &connections_,
                                                 .refused = [this] { metrics_.RecordRefusedConnection(); },
                                                 .guard = &guard_}));
  AttachHealth();
  return absl::OkStatus();
}

void Listeners::AttachHealth() {
  std::vector<HealthService*> services;
  for (GrpcListener* const listener : OpenGrpcListeners()) services.push_back(&listener->health());
  health_.Attach(std::move(services));
  metrics_.ReadStateFrom([this] { return std::string(ServingStateName(health_.state())); });
}

void Listeners::StartWatch() {
  watchdog_ = std::make_unique<PeriodicThread>(
      "listeners", std::vector<PeriodicThread::Job>{
                       {options_.probe_period, [this] { ProbeOwnPort(); }},
                       {options_.file_period, [this] { ReloadChangedFiles(); }},
                       {options_.file_period, [this] { metrics_.SetConnections(connections_.open()); }},
                       {kMemoryPeriod, [this] { GiveMemoryBack(); }},
                       {kExpiryPeriod, [this] { certificates_->WarnOfExpiry(); }}});
}

void Listeners::ProbeOwnPort() {
  absl::Status answer =
      Probe({.address = grpc_address(), .tls = certificates_->encrypts(), .dials_from = [this](int port) {
               grpc_->acceptor().ExpectOwn(port);
             }});
  // Under TLS the guard gives that answer, so the server is asked, too.
  if (answer.ok() && certificates_->encrypts()) answer = ProbeServer(grpc_->Dial(), kServerAnswer);
  if (answer.ok()) {
    if (failed_probes_.exchange(0) > 0) Log(LogLevel::kInfo, "server.grpc_address answers again");
    return;
  }
  metrics_.RecordPortProbeFailure();
  const int failed = failed_probes_.fetch_add(1) + 1;
  Log(LogLevel::kError, "server.grpc_address: %s: does not answer this process itself, %d in a row: %s",
      grpc_address(), failed, answer.message());
}

void Listeners::ReloadChangedFiles() {
  if (watched_files_.Changed()) ReloadFiles();
}

// After a flood the allocator keeps the memory: gRPC frees pieces between others that are in use, and a
// thread of HTTP frees in an arena of its own. So it is trimmed. After a shortage, fills the reserve again.
void Listeners::GiveMemoryBack() {
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

void Listeners::ReloadFiles() {
  if (const std::string& file = options_.server.auth.tokens_file; !file.empty()) {
    if (absl::StatusOr<TokenTable> table = TokenTable::Read(file); table.ok()) {
      Log(LogLevel::kInfo, "server.auth.tokens_file: %s: %d tokens", file, table->size());
      tokens_.Require(*std::move(table));
    } else {
      metrics_.RecordReload(/*accepted=*/false);
      Log(LogLevel::kError, "the tokens in force stay: %s", table.status().message());
    }
  }
  if (certificates_->encrypts()) ReloadCertificates();
}

void Listeners::ReloadCertificates() {
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
  metrics_.SetCertificateExpiry(certificates_->expiry_seconds());
}

HttpAnswer Listeners::Live() const {
  if (failed_probes_.load() >= kFailedProbes) {
    return {.status = 503, .body = absl::StrCat(options_.server.grpc_address, " does not answer\n")};
  }
  const std::optional<SteadyTime> turn = last_turn_();
  if (turn.has_value() && std::chrono::steady_clock::now() - *turn > options_.longest_turn) {
    return {.status = 503, .body = "the scheduler or the output thread hangs\n"};
  }
  return {.status = 200, .body = "live\n"};
}

HttpAnswer Listeners::Ready() const {
  const ServingState state = health_.state();
  return {.status = state == ServingState::kServing ? 200 : 503,
          .body = absl::StrCat(ServingStateName(state), "\n")};
}

std::string Listeners::grpc_address() const { return grpc_ == nullptr ? "" : grpc_->address(); }

std::string Listeners::gateway_address() const { return gateway_ == nullptr ? "" : gateway_->address(); }

std::string Listeners::admin_address() const {
  return admin_listener_ == nullptr ? "" : admin_listener_->address();
}

std::string Listeners::metrics_address() const {
  return metrics_listener_ == nullptr ? "" : metrics_listener_->address();
}

std::string Listeners::http_address() const {
  return http_listener_ == nullptr ? "" : http_listener_->address();
}

std::vector<GrpcListener*> Listeners::OpenGrpcListeners() const {
  std::vector<GrpcListener*> open;
  for (GrpcListener* const listener : {grpc_.get(), admin_listener_.get(), gateway_.get()}) {
    if (listener != nullptr) open.push_back(listener);
  }
  return open;
}

void Listeners::Shutdown() {
  health_.Attach({});
  metrics_.ReadStateFrom([state = std::string(ServingStateName(health_.state()))] { return state; });
  for (GrpcListener* const listener : OpenGrpcListeners()) listener->Shutdown();
  if (http_listener_ != nullptr) http_listener_->Shutdown();
  if (metrics_listener_ != nullptr) metrics_listener_->Shutdown();
  guard_.Stop();
  admin_guard_.Stop();
}

void Listeners::Close() {
  grpc_.reset();
  admin_listener_.reset();
  gateway_.reset();
  http_listener_.reset();
  metrics_listener_.reset();
}

}  // namespace foredraft
