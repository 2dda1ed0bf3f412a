#include "config/config_check.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace foredraft {
namespace {

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
                                           local_workers < 0 || local_workers > parallel.attention_dp)) {
    check.Refuse("parallel.local_workers", parallel.local_workers,
                 absl::StrFormat("auto, 0..%d", parallel.attention_dp));
  }
  if (!IsLoopback(parallel.leader_address) && config.server.tls.client_ca.empty() &&
      check.Usable({"server.tls.client_ca"})) {
    check.Refuse("parallel.leader_address", parallel.leader_address,
                 "a loopback address, or any with server.tls.cert, key and client_ca");
  }
}

void CheckParallel(const Config& config, Check& check) {
  const ParallelConfig& parallel = config.parallel;
  const int ranks = parallel.attention_dp;
  if (ranks != 1 && ranks != 2 && ranks != 4 && ranks != 8) {
    check.Refuse("parallel.attention_dp", Number(ranks), "1, 2, 4, 8");
  }
  if (!check.Usable({"parallel.attention_dp"})) return;
  if (parallel.attention_dp != parallel.moe_ep) {
    check.Refuse("parallel.moe_ep", Number(parallel.moe_ep),
                 absl::StrFormat("attention_dp, %d", parallel.attention_dp));
  }
  if (parallel.attention_dp == 1 && parallel.restart == RestartPolicy::kGroup) {
    check.Refuse("parallel.restart", "group", "exit: with attention_dp 1 the lost rank is the daemon");
  }
  if (parallel.attention_dp > 1) CheckWorkers(config, check);
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

void CheckGateway(const ServerConfig& server, Check& check) {
  if (server.gateway_address.empty() || IsLoopback(server.gateway_address) || server.allow_insecure) return;
  check.Refuse("server.gateway_address", server.gateway_address,
               "a loopback address, or any with server.allow_insecure: true");
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
  if (speculative.forced_acceptance_length &&
      *speculative.forced_acceptance_length > speculative.max_draft_len + 1) {
    check.Refuse("speculative_config.forced_acceptance_length",
                 absl::StrFormat("%g", *speculative.forced_acceptance_length),
                 absl::StrFormat("1..%d, max_draft_len + 1", speculative.max_draft_len + 1));
  }
}

void CheckBatchSizes(const Config& config, Check& check) {
  if (!config.cuda_graph_config || !check.Usable({"max_batch_size"})) return;
  const std::vector<int>& sizes = config.cuda_graph_config->batch_sizes;
  if (sizes.empty() || sizes.back() <= config.max_batch_size) return;
  check.Refuse("cuda_graph_config.batch_sizes", Number(sizes.back()),
               absl::StrFormat("1..%d, max_batch_size", config.max_batch_size));
}

}  // namespace

bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("localhost:") || address.starts_with("[::1]:");
}

void CheckConfig(const LoadedConfig& loaded, ConfigErrors& errors) {
  const Config& config = loaded.config;
  Check check(loaded, errors);
  if (config.model.empty() && check.Usable({"model"})) {
    errors.Add("model", absl::InvalidArgumentError(absl::StrFormat(
                            "%s: model: missing, allowed a checkpoint directory", loaded.file)));
  }
  CheckParallel(config, check);
  CheckTls(config.server.tls, check);
  CheckGateway(config.server, check);
  CheckBatchSizes(config, check);
  CheckSpeculative(config, check);
}

}  // namespace foredraft
