#include "server/api/fields/sampling_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "config/json_text.h"
#include "scheduler/request.h"

namespace foredraft {
namespace {

using nlohmann::json;

// {"token id": bias, ...}
std::vector<TokenBias> ReadLogitBias(FieldReader& fields) {
  std::vector<TokenBias> biases;
  const json* object = fields.Find("logit_bias");
  if (object == nullptr) return biases;
  if (!object->is_object()) {
    fields.Refuse("logit_bias",
                  absl::StrCat(ShowJson(*object), ", allowed an object of token ids and biases"));
    return biases;
  }
  for (const auto& [key, value] : object->items()) {
    int32_t token_id = 0;
    if (!absl::SimpleAtoi(key, &token_id) || !value.is_number()) {
      fields.Refuse("logit_bias", absl::StrCat(ShowJson(key), ": ", ShowJson(value),
                                               ", allowed a token id in quotes and a number"));
      break;
    }
    biases.push_back({token_id, value.get<float>()});
  }
  return biases;
}

ClientSampling ReadSampling(FieldReader& fields) {
  ClientSampling sampling;
  sampling.temperature = fields.Float("temperature");
  sampling.top_p = fields.Float("top_p");
  sampling.top_k = fields.Int("top_k");
  sampling.min_p = fields.Float("min_p");
  sampling.repetition_penalty = fields.Float("repetition_penalty");
  if (const auto penalty = fields.Float("repeat_penalty")) sampling.repetition_penalty = penalty;
  sampling.presence_penalty = fields.Float("presence_penalty");
  sampling.frequency_penalty = fields.Float("frequency_penalty");
  sampling.seed = fields.Seed("seed");
  sampling.min_tokens = fields.Int("min_tokens").value_or(0);
  sampling.logit_bias = ReadLogitBias(fields);
  return sampling;
}

}  // namespace

void ReadCommonFields(FieldReader& fields, ClientRequest& request) {
  request.sampling = ReadSampling(fields);
  request.stop = fields.Strings("stop");
  request.stop_token_ids = fields.Ids("stop_token_ids");
  request.ignore_eos = fields.Bool("ignore_eos", false);
  for (const char* name : {"include_stop_str_in_output", "no_stop_trim"}) {
    request.keeps_stop |= fields.Bool(name, false);
  }
  request.max_draft_tokens = fields.Int("max_draft_tokens");
  request.thinking_budget = fields.Int("thinking_token_budget");
  request.strict_acceptance = fields.Bool("strict_acceptance", false);
  const int32_t priority = fields.Int("priority").value_or(0);
  request.priority = std::clamp(priority, -kMaxPriority, kMaxPriority);
  if (request.priority != priority) fields.Drop("priority");
  request.timeout_s = fields.Double("timeout_s");
  for (const char* name : {"request_id", "rid"}) {
    if (auto id = fields.String(name)) request.request_id = *std::move(id);
  }
  for (const char* name : {"cache_salt", "extra_key"}) {
    if (auto salt = fields.String(name)) request.cache_salt = *std::move(salt);
  }
}

const char* ReadMaxTokens(FieldReader& fields, ClientRequest& request, const char* own) {
  const char* used = own == nullptr ? "max_tokens" : own;
  for (const char* name : {"max_tokens", "max_completion_tokens", "n_predict", own}) {
    if (name == nullptr || fields.Find(name) == nullptr) continue;
    used = name;
    const std::optional<int32_t> most = fields.Int(name);
    if (most.has_value()) request.max_tokens = *most == -1 ? std::nullopt : most;
  }
  return used;
}

}  // namespace foredraft
