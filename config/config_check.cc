#include "config/config_check.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

std::string Number(int64_t value) { return absl::StrFormat("%d", value); }

absl::Status CheckParallel(const LoadedConfig& loaded) {
  const ParallelConfig& parallel = loaded.config.parallel;
  for (const auto& [path, value] : {std::pair("parallel.attention_dp", parallel.attention_dp),
                                    std::pair("parallel.moe_ep", parallel.moe_ep)}) {
    if (value != 1 && value != 2 && value != 4 && value != 8) {
      return RefuseKey(loaded, path, Number(value), "1, 2, 4, 8");
    }
  }
  if (parallel.attention_dp != parallel.moe_ep) {
    return RefuseKey(loaded, "parallel.moe_ep", Number(parallel.moe_ep),
                     absl::StrFormat("attention_dp, %d", parallel.attention_dp));
  }
  if (parallel.attention_dp == 1 && parallel.restart == RestartPolicy::kGroup) {
    return RefuseKey(loaded, "parallel.restart", "group",
                     "exit: with attention_dp 1 the lost rank is the daemon");
  }
  if (parallel.attention_dp == 1) return absl::OkStatus();
  int local_workers = 0;
  if (parallel.local_workers != "auto" && (!absl::SimpleAtoi(parallel.local_workers, &local_workers) ||
                                           local_workers < 0 || local_workers > parallel.attention_dp)) {
    return RefuseKey(loaded, "parallel.local_workers", parallel.local_workers,
                     absl::StrFormat("auto, 0..%d", parallel.attention_dp));
  }
  if (!IsLoopback(parallel.leader_address) && loaded.config.server.tls.client_ca.empty()) {
    return RefuseKey(loaded, "parallel.leader_address", parallel.leader_address,
                     "a loopback address, or any with server.tls.cert, key and client_ca");
  }
  return absl::OkStatus();
}

absl::Status CheckTls(const LoadedConfig& loaded) {
  const TlsConfig& tls = loaded.config.server.tls;
  if (tls.cert.empty() && !tls.key.empty()) {
    return RefuseKey(loaded, "server.tls.cert", "null", "a file where server.tls.key is set");
  }
  if (!tls.cert.empty() && tls.key.empty()) {
    return RefuseKey(loaded, "server.tls.key", "null", "a file where server.tls.cert is set");
  }
  if (!tls.client_ca.empty() && tls.cert.empty()) {
    return RefuseKey(loaded, "server.tls.client_ca", tls.client_ca, "null without server.tls.cert");
  }
  return absl::OkStatus();
}

absl::Status CheckGateway(const LoadedConfig& loaded) {
  const ServerConfig& server = loaded.config.server;
  if (server.gateway_address.empty() || IsLoopback(server.gateway_address) || server.allow_insecure) {
    return absl::OkStatus();
  }
  return RefuseKey(loaded, "server.gateway_address", server.gateway_address,
                   "a loopback address, or any with server.allow_insecure: true");
}

absl::Status CheckSchedule(const LoadedConfig& loaded, const SpeculativeConfig& speculative) {
  const std::string path = "speculative_config.draft_len_schedule";
  const bool scheduled = speculative.draft_policy == DraftPolicyKind::kSchedule;
  if (scheduled && speculative.draft_len_schedule.empty()) {
    return RefuseKey(loaded, path, "null", "a mapping like {4: 3, 16: 2}, draft_policy is schedule");
  }
  if (!scheduled && !speculative.draft_len_schedule.empty()) {
    return RefuseKey(loaded, path, "set",
                     absl::StrCat("null where draft_policy is ", NameOf(speculative.draft_policy)));
  }
  for (const auto& [bucket, draft_len] : speculative.draft_len_schedule) {
    if (draft_len > speculative.max_draft_len) {
      return RefuseKey(loaded, path, absl::StrFormat("%d: %d", bucket, draft_len),
                       absl::StrFormat("0..%d, max_draft_len", speculative.max_draft_len));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSpeculative(const LoadedConfig& loaded) {
  if (!loaded.config.speculative_config) return absl::OkStatus();
  const SpeculativeConfig& speculative = *loaded.config.speculative_config;
  RETURN_IF_ERROR(CheckSchedule(loaded, speculative));
  if (speculative.forced_acceptance_length &&
      *speculative.forced_acceptance_length > speculative.max_draft_len + 1) {
    return RefuseKey(loaded, "speculative_config.forced_acceptance_length",
                     absl::StrFormat("%g", *speculative.forced_acceptance_length),
                     absl::StrFormat("1..%d, max_draft_len + 1", speculative.max_draft_len + 1));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("localhost:") || address.starts_with("[::1]:");
}

absl::Status CheckConfig(const LoadedConfig& loaded) {
  const Config& config = loaded.config;
  if (config.model.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: model: missing, allowed a checkpoint directory", loaded.file));
  }
  RETURN_IF_ERROR(CheckParallel(loaded));
  RETURN_IF_ERROR(CheckTls(loaded));
  RETURN_IF_ERROR(CheckGateway(loaded));
  if (config.cuda_graph_config && !config.cuda_graph_config->batch_sizes.empty() &&
      config.cuda_graph_config->batch_sizes.back() > config.max_batch_size) {
    return RefuseKey(loaded, "cuda_graph_config.batch_sizes",
                     Number(config.cuda_graph_config->batch_sizes.back()),
                     absl::StrFormat("1..%d, max_batch_size", config.max_batch_size));
  }
  return CheckSpeculative(loaded);
}

}  // namespace foredraft
