#include "config/config_check.h"

#include <arpa/inet.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace foredraft {
namespace {

constexpr int kMostDecodePauseMs = 600'000;

std::string Number(int64_t value) { return absl::StrFormat("%d", value); }

// Adds faults to a list. A key that was refused already is not compared again.
class Check {
 public:
  Check(const LoadedConfig& loaded, ConfigErrors& errors) : loaded_(loaded), errors_(errors) {}

  bool Usable(std::initializer_list<std::string_view> paths) const {
    return std::none_of(paths.begin(), paths.end(),
                        [this](std::string_view path) { return errors_.Refused(path); });
  }
  void Refuse(const std::string& path, const std::string& value, const std::string& allowed) {
    if (Usable({path})) errors_.Add(path, RefuseKey(loaded_, path, value, allowed));
  }

 private:
  const LoadedConfig& loaded_;
  ConfigErrors& errors_;
};

void CheckWorkers(const Config& config, Check& check) {
  const ParallelConfig& parallel = config.parallel;
  int local_workers = 0;
  if (parallel.local_workers != "auto" && (!absl::SimpleAtoi(parallel.local_workers, &local_workers) ||
                                           local_workers < 0 || local_workers > parallel.world_size())) {
    check.Refuse("parallel.local_workers", parallel.local_workers,
                 absl::StrFormat("auto, 0..%d", parallel.world_size()));
  }
  const bool has_authority = !parallel.tls.ca.empty() || !config.server.tls.client_ca.empty();
  if (!IsLoopback(parallel.leader_address) && !has_authority &&
      check.Usable({"server.tls.client_ca", "parallel.tls.ca"})) {
    check.Refuse(
        "parallel.leader_address", parallel.leader_address,
        "a loopback address, or any with parallel.tls.ca, or with server.tls.cert, key and client_ca");
  }
  const bool all_here = parallel.local_workers == "auto" || local_workers == parallel.world_size();
  if (!all_here && parallel.token_file.empty() && parallel.tls.ca.empty() &&
      check.Usable({"parallel.local_workers", "parallel.token_file", "parallel.tls.ca"})) {
    check.Refuse("parallel.local_workers", parallel.local_workers,
                 absl::StrFormat("auto, %d, or fewer with parallel.token_file or parallel.tls.ca",
                                 parallel.world_size()));
  }
}

void CheckWorkerTls(const Config& config, Check& check) {
  const WorkerTlsConfig& tls = config.parallel.tls;
  if (!check.Usable({"parallel.tls.cert", "parallel.tls.key", "parallel.tls.ca", "server.tls.cert",
                     "server.tls.key"})) {
    return;
  }
  if (tls.cert.empty() != tls.key.empty()) {
    check.Refuse(tls.cert.empty() ? "parallel.tls.cert" : "parallel.tls.key", "null",
                 absl::StrCat("a file where parallel.tls.", tls.cert.empty() ? "key" : "cert", " is set"));
  }
  if (!tls.cert.empty() && tls.ca.empty()) {
    check.Refuse("parallel.tls.ca", "null", "a file where parallel.tls.cert is set");
  }
  if (!tls.ca.empty() && tls.cert.empty() && config.server.tls.cert.empty()) {
    check.Refuse("parallel.tls.ca", tls.ca, "null without parallel.tls.cert or server.tls.cert");
  }
  if (!tls.ca.empty() && tls.ca == config.server.tls.client_ca && config.parallel.token_file.empty()) {
    check.Refuse("parallel.tls.ca", tls.ca,
                 "another authority than server.tls.client_ca, or parallel.token_file: any client's "
                 "certificate could join as a rank");
  }
}

// Attention and experts divide the ranks in two ways, which must give the same number of ranks.
void CheckRanks(const ParallelConfig& parallel, Check& check) {
  if (parallel.world_size() > 8) {
    return check.Refuse("parallel.attention_tp", Number(parallel.attention_tp),
                        absl::StrFormat("%d with attention_dp %d: there are at most 8 ranks",
                                        8 / parallel.attention_dp, parallel.attention_dp));
  }
  const int ranks = parallel.world_size();
  const char* const attention = parallel.attention_dp == 1   ? "attention_tp"
                                : parallel.attention_tp == 1 ? "attention_dp"
                                                             : "attention_dp x attention_tp";
  if (parallel.moe_tp > 1 && parallel.attention_dp > 1) {
    return check.Refuse("parallel.moe_tp", Number(parallel.moe_tp),
                        "1 with attention_dp: ranks share columns where all share the requests");
  }
  if (parallel.moe_tp > 1 && parallel.attention_tp == 1) {
    return check.Refuse("parallel.moe_tp", Number(parallel.moe_tp),
                        "1 without attention_tp: ranks share columns where they share requests");
  }
  if (parallel.moe_ep * parallel.moe_tp == ranks) return;
  if (parallel.moe_tp == 1) {
    return check.Refuse("parallel.moe_ep", Number(parallel.moe_ep),
                        absl::StrFormat("%s, %d", attention, ranks));
  }
  check.Refuse("parallel.moe_tp", Number(parallel.moe_tp),
               absl::StrFormat("%s %d / moe_ep %d, so that moe_ep x moe_tp is %d", attention, ranks,
                               parallel.moe_ep, ranks));
}

void CheckParallel(const Config& config, Check& check) {
  const ParallelConfig& parallel = config.parallel;
  const auto check_factor = [&check](const char* key, int ranks) {
    if (ranks != 1 && ranks != 2 && ranks != 4 && ranks != 8) check.Refuse(key, Number(ranks), "1, 2, 4, 8");
  };
  check_factor("parallel.attention_dp", parallel.attention_dp);
  check_factor("parallel.attention_tp", parallel.attention_tp);
  if (!check.Usable(
          {"parallel.attention_dp", "parallel.attention_tp", "parallel.moe_ep", "parallel.moe_tp"})) {
    return;
  }
  CheckRanks(parallel, check);
  if (parallel.world_size() == 1 && parallel.restart == RestartPolicy::kGroup) {
    check.Refuse("parallel.restart", "group", "exit: with one rank the lost rank is the daemon");
  }
  if (parallel.world_size() > 1) CheckWorkers(config, check);
  CheckWorkerTls(config, check);
}

void CheckAttentionProducts(const Config& config, Check& check) {
  constexpr const char* kKey = "kv_cache_config.attention_products";
  if (config.kv_cache_config.attention_products != AttentionProducts::kFp8) return;
  if (config.kv_cache_config.dtype != KvDtype::kFp8) {
    check.Refuse(kKey, "fp8", "bf16 where kv_cache_config.dtype is not fp8");
  }
}

void CheckInputs(const Config& config, Check& check) {
  constexpr const char* kKey = "cpu.inputs";
  if (config.cpu.inputs != CpuInputs::kInt8) return;
  if (config.backend == Backend::kCuda) check.Refuse(kKey, "int8", "bf16 with backend cuda");
  if (config.moe.inputs == MoeInputs::kNvfp4) {
    check.Refuse(kKey, "int8", "bf16 where moe.inputs is nvfp4: rows are rounded once");
  }
}

void CheckDecodePause(const Config& config, Check& check) {
  const std::string& pause = config.scheduler.max_decode_pause_ms;
  int milliseconds = 0;
  if (pause == "auto") return;
  if (!absl::SimpleAtoi(pause, &milliseconds) || milliseconds < 0 || milliseconds > kMostDecodePauseMs) {
    check.Refuse("scheduler.max_decode_pause_ms", pause, absl::StrFormat("auto, 0..%d", kMostDecodePauseMs));
  }
}

void CheckTls(const TlsConfig& tls, Check& check) {
  if (!check.Usable({"server.tls.cert", "server.tls.key"})) return;
  if (tls.cert.empty() && !tls.key.empty()) {
    check.Refuse("server.tls.cert", "null", "a file where server.tls.key is set");
  }
  if (!tls.cert.empty() && tls.key.empty()) {
    check.Refuse("server.tls.key", "null", "a file where server.tls.cert is set");
  }
  if (!tls.client_ca.empty() && tls.cert.empty()) {
    check.Refuse("server.tls.client_ca", tls.client_ca, "null without server.tls.cert");
  }
}

// A listener that is not on loopback needs TLS and callers that it can identify, unless allow_insecure is
// set.
void CheckListeners(const ServerConfig& server, Check& check) {
  if (server.allow_insecure || !check.Usable({"server.allow_insecure", "server.tls.cert"})) return;
  const auto refuse = [&](const char* key, const std::string& address, const char* needs) {
    check.Refuse(key, address,
                 absl::StrCat("a loopback address, or any with ", needs, "server.allow_insecure: true"));
  };
  const bool tokens = !server.auth.tokens_file.empty();
  const auto check_api = [&](const char* key, const std::string& address) {
    if (address.empty() || IsLocal(address)) return;
    if (server.tls.cert.empty()) {
      refuse(key, address, "server.tls.cert and key, or with ");
    } else if (!tokens && server.tls.client_ca.empty()) {
      refuse(key, address, "server.auth.tokens_file or server.tls.client_ca, or with ");
    }
  };
  check_api("server.grpc_address", server.grpc_address);
  check_api("server.http_address", server.http_address);
  // A client certificate allows its owner to generate, not to drain.
  const bool admin = !server.admin_address.empty() && server.admin_address != kNoListener;
  if (admin && !IsLocal(server.admin_address) && (server.tls.cert.empty() || !tokens)) {
    refuse("server.admin_address", server.admin_address,
           "server.tls.cert and key and server.auth.tokens_file, or with ");
  }
  if (!server.gateway_address.empty() && !IsLocal(server.gateway_address)) {
    refuse("server.gateway_address", server.gateway_address, "");
  }
}

// An address in the form in which ports are compared: host and port; a unix socket's whole name is the host.
struct Endpoint {
  std::string host, port;
};

Endpoint EndpointOf(const std::string& address) {
  if (address.starts_with("unix:")) return {address, ""};
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host == "localhost") host = "127.0.0.1";
  return {host, colon == std::string::npos ? "" : address.substr(colon + 1)};
}

// True if the second of two listeners would find the port in use. Port 0 stands for any free port.
bool Collide(const Endpoint& one, const Endpoint& other) {
  const auto is_any = [](const std::string& host) { return host == "0.0.0.0" || host == "[::]"; };
  if (one.port != other.port || one.port == "0") return false;
  if (one.host == other.host) return true;
  return !one.port.empty() && (is_any(one.host) || is_any(other.host));
}

void CheckPorts(const LoadedConfig& loaded, Check& check) {
  const ServerConfig& server = loaded.config.server;
  std::vector<std::pair<const char*, std::string>> listeners = {
      {"server.grpc_address", server.grpc_address},
      {"server.metrics_address", server.metrics_address},
      {"server.http_address", server.http_address},
      {"server.gateway_address", server.gateway_address},
      {"server.admin_address", server.admin_address}};
  if (loaded.config.parallel.world_size() > 1) {
    listeners.emplace_back("parallel.leader_address", loaded.config.parallel.leader_address);
  }
  std::erase_if(listeners, [](const auto& listener) {
    return listener.second.empty() || listener.second == kNoListener;
  });
  for (size_t i = 0; i < listeners.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const auto& [key, address] = listeners[i];
      const auto& [other, taken] = listeners[j];
      if (!check.Usable({key, other}) || !Collide(EndpointOf(address), EndpointOf(taken))) continue;
      // Names the address that was set, not the default: that one is to be changed.
      const bool by_default = !loaded.origins.contains(key);
      check.Refuse(
          by_default ? other : key, by_default ? taken : address,
          absl::StrCat("another port: ", by_default ? key : other, " has ", by_default ? address : taken));
    }
  }
}

// ResolveDefaults, which knows the model's own name, checks that no alias equals it.
void CheckModelAliases(const ServerConfig& server, Check& check) {
  for (const std::string& alias : server.model_aliases) {
    if (alias.find('*') >= alias.size() - 1) continue;
    check.Refuse("server.model_aliases", absl::StrCat("\"", alias, "\""),
                 "names with at most one *, at the end");
  }
}

void CheckSchedule(const SpeculativeConfig& speculative, Check& check) {
  const std::string path = "speculative_config.draft_len_schedule";
  const bool scheduled = speculative.draft_policy == DraftPolicyKind::kSchedule;
  if (!check.Usable({"speculative_config.draft_policy"})) return;
  if (scheduled && speculative.draft_len_schedule.empty()) {
    check.Refuse(path, "null", "a mapping like {4: 3, 16: 2}, draft_policy is schedule");
  }
  if (!scheduled && !speculative.draft_len_schedule.empty()) {
    check.Refuse(path, "set", absl::StrCat("null where draft_policy is ", NameOf(speculative.draft_policy)));
  }
  for (const auto& [bucket, draft_len] : speculative.draft_len_schedule) {
    if (draft_len > speculative.max_draft_len) {
      check.Refuse(path, absl::StrFormat("%d: %d", bucket, draft_len),
                   absl::StrFormat("0..%d, max_draft_len", speculative.max_draft_len));
    }
  }
}

void CheckSpeculative(const Config& config, Check& check) {
  if (!config.speculative_config || !check.Usable({"speculative_config.max_draft_len"})) return;
  const SpeculativeConfig& speculative = *config.speculative_config;
  CheckSchedule(speculative, check);
  if (speculative.draft_policy == DraftPolicyKind::kConfidence &&
      speculative.decoding_type != DecodingType::kDSpark &&
      check.Usable({"speculative_config.draft_policy", "speculative_config.decoding_type"})) {
    check.Refuse("speculative_config.draft_policy", NameOf(speculative.draft_policy),
                 absl::StrCat("fixed, schedule, adaptive: drafts of decoding_type ",
                              NameOf(speculative.decoding_type), " have no confidences"));
  }
  const bool eagle3 = speculative.decoding_type == DecodingType::kEagle3;
  const char* const head = "speculative_config.speculative_model";
  if (eagle3 && speculative.speculative_model.empty()) {
    check.Refuse(head, "missing", "the checkpoint directory of a head, with decoding_type Eagle3");
  }
  if (!eagle3 && !speculative.speculative_model.empty() &&
      check.Usable({"speculative_config.decoding_type"})) {
    check.Refuse(head, speculative.speculative_model,
                 absl::StrCat("null with decoding_type ", NameOf(speculative.decoding_type),
                              ", which drafts with the checkpoint of `model`"));
  }
  if (!eagle3 && !speculative.eagle3_layers_to_capture.empty()) {
    check.Refuse("speculative_config.eagle3_layers_to_capture", "set",
                 absl::StrCat("null with decoding_type ", NameOf(speculative.decoding_type)));
  }
  if (speculative.forced_acceptance_length &&
      *speculative.forced_acceptance_length > speculative.max_draft_len + 1) {
    check.Refuse("speculative_config.forced_acceptance_length",
                 absl::StrFormat("%g", *speculative.forced_acceptance_length),
                 absl::StrFormat("1..%d, max_draft_len + 1", speculative.max_draft_len + 1));
  }
}

}  // namespace

bool IsLoopback(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  const std::string host = address.substr(0, colon);
  if (host == "localhost") return true;
  in_addr ipv4;
  if (inet_pton(AF_INET, host.c_str(), &ipv4) == 1) return ntohl(ipv4.s_addr) >> 24 == IN_LOOPBACKNET;
  in6_addr ipv6;
  return host.size() > 2 && host.front() == '[' && host.back() == ']' &&
         inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &ipv6) == 1 &&
         IN6_IS_ADDR_LOOPBACK(&ipv6);
}

bool IsLocal(const std::string& address) { return address.starts_with("unix:") || IsLoopback(address); }

void CheckConfig(const LoadedConfig& loaded, ConfigErrors& errors) {
  const Config& config = loaded.config;
  Check check(loaded, errors);
  if (config.model.empty() && check.Usable({"model"})) {
    errors.Add("model", absl::InvalidArgumentError(absl::StrFormat(
                            "%s: model: missing, allowed a checkpoint directory", loaded.file)));
  }
  CheckParallel(config, check);
  CheckAttentionProducts(config, check);
  CheckInputs(config, check);
  CheckDecodePause(config, check);
  CheckTls(config.server.tls, check);
  CheckListeners(config.server, check);
  CheckPorts(loaded, check);
  CheckModelAliases(config.server, check);
  CheckSpeculative(config, check);
}

}  // namespace foredraft
