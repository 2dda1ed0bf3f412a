#include "server/frontend.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/api/undecodable_requests.h"
#include "server/output/request_log.h"
#include "server/tls.h"

namespace foredraft {
namespace {

constexpr std::chrono::milliseconds kLastWrites(500);

void SetChannelOptions(const ServerConfig& config, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(config.max_message_mib << 20);
  AnswerUndecodableRequests(builder);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_streams_per_connection);
  builder.SetResourceQuota(
      grpc::ResourceQuota("foredraft").Resize(static_cast<size_t>(config.memory_quota_mib) << 20));
  // Without this, a second daemon on the same port would start and share the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Gateways ping every 30 s, also while idle. A dead peer is found within a minute.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 40'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
}

// Null: the address cannot be listened on.
std::unique_ptr<grpc::Server> StartServer(const ServerConfig& config, const std::string& address,
                                          const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                          const std::vector<grpc::Service*>& services, int* port) {
  grpc::ServerBuilder builder;
  SetChannelOptions(config, builder);
  builder.AddListeningPort(address, credentials, port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  return *port == 0 ? nullptr : std::move(server);
}

absl::Status CannotListen(const char* key, const std::string& address) {
  return absl::UnavailableError(absl::StrCat(
      key, ": ", address, ": cannot listen: the port is in use or this host does not have the address"));
}

std::string WithPort(const std::string& address, int port) {
  return address.ends_with(":0") ? absl::StrCat(address.substr(0, address.size() - 1), port) : address;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Frontend>> Frontend::Listen(const FrontendOptions& options, AdminHooks hooks) {
  std::unique_ptr<Frontend> frontend(new Frontend(options, std::move(hooks)));
  RETURN_IF_ERROR(frontend->ListenMetrics());
  RETURN_IF_ERROR(frontend->ListenGrpc());
  RETURN_IF_ERROR(frontend->ListenGateway());
  return frontend;
}

Frontend::Frontend(const FrontendOptions& options, AdminHooks hooks)
    : options_(options),
      metrics_(std::make_shared<Metrics>(options.metrics)),
      admission_(options.request_timeout_s, health_, *metrics_),
      generation_(admission_, options.max_pending_tokens),
      admin_(std::move(hooks), [this] { return ServerLoadNow(); }),
      vllm_engine_(admission_,
                   {.load = [this] { return ServerLoadNow(); },
                    .generated_tokens = [this] { return metrics_->generated_tokens(); }},
                   options.max_pending_tokens) {}

Frontend::~Frontend() { Shutdown(); }

absl::Status Frontend::ListenMetrics() {
  if (options_.server.metrics_address.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(exposer_, ExposeMetrics(options_.server.metrics_address, metrics_));
  const std::vector<int> ports = exposer_->GetListeningPorts();
  metrics_port_ = ports.empty() ? 0 : ports.front();
  return absl::OkStatus();
}

absl::Status Frontend::ListenGrpc() {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::ServerCredentials> credentials,
                   ServerCredentials(options_.server.tls));
  grpc::EnableDefaultHealthCheckService(true);
  if (options_.server.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::vector<grpc::Service*> services = {&generation_, &admin_};
  if (options_.server.gateway_address.empty()) services.push_back(&vllm_engine_);
  grpc_server_ =
      StartServer(options_.server, options_.server.grpc_address, credentials, services, &grpc_port_);
  if (grpc_server_ == nullptr) return CannotListen("server.grpc_address", options_.server.grpc_address);
  health_.Attach({grpc_server_.get()});
  return absl::OkStatus();
}

absl::Status Frontend::ListenGateway() {
  const std::string& address = options_.server.gateway_address;
  if (address.empty()) return absl::OkStatus();
  gateway_server_ = StartServer(options_.server, address, grpc::InsecureServerCredentials(), {&vllm_engine_},
                                &gateway_port_);
  if (gateway_server_ == nullptr) return CannotListen("server.gateway_address", address);
  health_.Attach({grpc_server_.get(), gateway_server_.get()});
  return absl::OkStatus();
}

void Frontend::Serve(ServedModel model) {
  CHECK(loop_ == nullptr) << "Serve was called twice";
  tokenizer_ = std::move(model.tokenizer);
  std::string no_chat;
  if (absl::StatusOr<ChatFormat> format = ChatFormat::Create(*tokenizer_, model.architecture); format.ok()) {
    chat_format_ = *std::move(format);
  } else {
    no_chat = std::string(format.status().message());
    Log(LogLevel::kInfo, "chat requests are refused: %s", no_chat);
  }
  validator_ = std::make_unique<RequestValidator>(
      std::move(model.limits), *tokenizer_, chat_format_.has_value() ? &*chat_format_ : nullptr, no_chat);
  output_ = std::make_unique<OutputThread>(
      options_.output, *metrics_, [this](uint64_t id, FinishReason reason) { loop_->Cancel(id, reason); });
  const bool forced = model.scheduler.acceptance.forced_length > 0;
  loop_ = std::make_unique<ServingLoop>(
      model.loop, std::make_unique<Scheduler>(model.scheduler), std::move(model.executors),
      [this](std::vector<RequestUpdate> updates) { output_->Deliver(std::move(updates)); },
      [this](const IterationStats& stats) { metrics_->RecordIteration(stats); });
  loop_->Start();
  serving_loop_.store(loop_.get());
  metrics_->ReadLoadFrom([this] { return Load(); });
  admission_.Open({.tokenizer = tokenizer_.get(),
                   .validator = validator_.get(),
                   .loop = loop_.get(),
                   .output = output_.get(),
                   .model = std::move(model.card)});
  metrics_->SetForced(forced);
  health_.Enter(ServingState::kServing);
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

std::string Frontend::grpc_address() const { return WithPort(options_.server.grpc_address, grpc_port_); }

std::string Frontend::gateway_address() const {
  return WithPort(options_.server.gateway_address, gateway_port_);
}

std::string Frontend::metrics_address() const {
  return WithPort(options_.server.metrics_address, metrics_port_);
}

void Frontend::SetSpeculation(const Speculation& speculation, const ThinkingIds& thinking) {
  metrics_->SetForced(speculation.acceptance.forced_length > 0);
  ServingLoop* const loop = serving_loop_.load();
  if (loop == nullptr) return;  // loading: the daemon calls this again afterwards
  loop->SetSpeculation(speculation);
  validator_->SetThinking(thinking);
}

void Frontend::SetMaxQueueSize(int max_queue_size) {
  if (ServingLoop* loop = serving_loop_.load(); loop != nullptr) loop->SetMaxQueueSize(max_queue_size);
}

void Frontend::Shutdown() {
  if (grpc_server_ == nullptr) return;
  BeginDrain();
  if (output_ != nullptr) {
    output_->EndAll(absl::UnavailableError("draining: the daemon stopped before the request ended"));
    WaitForNoCalls(std::chrono::steady_clock::now() + kLastWrites);
  }
  health_.Attach({});
  for (grpc::Server* server : {grpc_server_.get(), gateway_server_.get()}) {
    if (server == nullptr) continue;
    server->Shutdown(std::chrono::system_clock::now());
    server->Wait();
  }
  exposer_.reset();
  if (loop_ != nullptr) loop_->Stop();
  if (output_ != nullptr) output_->Stop();
  grpc_server_.reset();
  gateway_server_.reset();
}

}  // namespace foredraft
