#include "server/request_setup.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "ranks/engine_setup.h"
#include "ranks/model_files.h"
#include "server/text/synth_tokenizer.h"

namespace foredraft {
namespace {

int LongestTokenBytes(const Tokenizer& tokenizer) {
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.TokenBytes(id).size());
  }
  return static_cast<int>(longest);
}

// Values that the checkpoint does not set are neutral.
SamplingParams DefaultSampling(const GenerationConfig& defaults) {
  SamplingParams sampling;
  sampling.temperature = static_cast<float>(defaults.temperature.value_or(sampling.temperature));
  sampling.top_p = static_cast<float>(defaults.top_p.value_or(sampling.top_p));
  sampling.top_k = defaults.top_k.value_or(sampling.top_k);
  sampling.min_p = static_cast<float>(defaults.min_p.value_or(sampling.min_p));
  sampling.repetition_penalty =
      static_cast<float>(defaults.repetition_penalty.value_or(sampling.repetition_penalty));
  return sampling;
}

const std::vector<int>& EndIdsOf(const ModelConfig& model, const GenerationConfig& defaults) {
  return defaults.eos_token_ids.empty() ? model.eos_token_ids : defaults.eos_token_ids;
}

// Token ids index arrays of the model's vocabulary: the tokenizer may have fewer, not more.
absl::Status CheckVocabulary(const std::string& path, const Tokenizer& tokenizer, const ModelConfig& model) {
  if (tokenizer.vocab_size() <= model.vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: the largest token id is %d, vocab_size in config.json is %d", path,
                      tokenizer.vocab_size() - 1, model.vocab_size));
}

std::string ModelDirectory(const Config& config) {
  const std::filesystem::path path = std::filesystem::absolute(config.model).lexically_normal();
  return IsConfigJson(config) || !path.has_filename() ? path.parent_path() : path;
}

absl::StatusOr<std::vector<int32_t>> WindDownIds(const Config& config, const Tokenizer& tokenizer) {
  const std::string& text = config.thinking.wind_down;
  if (text.empty()) return std::vector<int32_t>();
  constexpr int kMost = kMaxThoughtEndIds - 1;
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text, {.add_bos = false});
  if (!ids.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("thinking.wind_down: ", ids.status().message()));
  }
  if (ids->size() > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("thinking.wind_down: ", ids->size(), " tokens, allowed at most ", kMost));
  }
  return ids;
}

}  // namespace

SynthVocabulary SynthVocabularyOf(const ModelConfig& model) {
  return {.size = model.vocab_size,
          .bos_id = model.bos_token_id,
          .eos_id = model.eos_token_ids.empty() ? -1 : model.eos_token_ids.front()};
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const Config& config, const ModelConfig& model) {
  const std::string path = TokenizerFileOf(config.model);
  std::error_code error;
  if (config.load_format == LoadFormat::kDummy && !std::filesystem::exists(path, error)) {
    return Tokenizer::Parse(SynthTokenizerJson(SynthVocabularyOf(model)), /*tokenizer_config_json=*/"");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(path));
  RETURN_IF_ERROR(CheckVocabulary(path, *tokenizer, model));
  return tokenizer;
}

absl::StatusOr<GenerationConfig> LoadGenerationConfig(const Config& config) {
  if (IsConfigJson(config)) return GenerationConfig{};
  return ReadGenerationConfig(config.model + "/generation_config.json");
}

int TokenCountOf(const Tokenizer& tokenizer, const ModelConfig& model, const GenerationConfig& defaults) {
  int count = tokenizer.vocab_size();
  for (const int id : EndIdsOf(model, defaults)) count = std::max(count, id + 1);
  return std::min(count, model.vocab_size);
}

std::vector<int32_t> MissingTokensOf(const Tokenizer& tokenizer, const ModelConfig& model,
                                     const GenerationConfig& defaults) {
  const std::vector<int>& ends = EndIdsOf(model, defaults);
  const int count = TokenCountOf(tokenizer, model, defaults);
  std::vector<int32_t> missing;
  for (int32_t id = 0; id < count; ++id) {
    if (tokenizer.TokenBytes(id).empty() && std::find(ends.begin(), ends.end(), id) == ends.end()) {
      missing.push_back(id);
    }
  }
  return missing;
}

ThinkingIds TokenizerThinkingIds(const Tokenizer& tokenizer) {
  return {.begin = tokenizer.AddedTokenId("<think>").value_or(-1),
          .end = tokenizer.AddedTokenId("</think>").value_or(-1)};
}

ThinkingIds ThinkingIdsOf(const Config& config, const ThinkingIds& of_tokenizer) {
  ThinkingIds ids = of_tokenizer;
  if (config.speculative_config.has_value()) {
    ids.begin = config.speculative_config->begin_thinking_phase_token.value_or(ids.begin);
    ids.end = config.speculative_config->end_thinking_phase_token.value_or(ids.end);
  }
  return ids;
}

absl::Status CheckThinkingIds(const ThinkingIds& ids) {
  if ((ids.begin < 0) == (ids.end < 0)) return absl::OkStatus();
  const bool begins = ids.begin >= 0;
  return absl::InvalidArgumentError(absl::StrFormat(
      "token %d %s a thought and no token %s one: tokenizer.json has no added token \"%s\", and "
      "speculative_config.%s_thinking_phase_token is not set, allowed both tokens or neither",
      std::max(ids.begin, ids.end), begins ? "begins" : "ends", begins ? "ends" : "begins",
      begins ? "</think>" : "<think>", begins ? "end" : "begin"));
}

absl::StatusOr<TextFiles> ReadTextFiles(const Config& config, const ModelConfig& model) {
  TextFiles files;
  ASSIGN_OR_RETURN(files.tokenizer, LoadTokenizer(config, model));
  ASSIGN_OR_RETURN(files.defaults, LoadGenerationConfig(config));
  files.tokenizer_thinking = TokenizerThinkingIds(*files.tokenizer);
  files.thinking = ThinkingIdsOf(config, files.tokenizer_thinking);
  RETURN_IF_ERROR(CheckThinkingIds(files.thinking));
  ASSIGN_OR_RETURN(files.wind_down_ids, WindDownIds(config, *files.tokenizer));
  return files;
}

RequestLimits RequestLimitsOf(const Config& config, const ModelConfig& model,
                              const GenerationConfig& defaults, const Tokenizer& tokenizer,
                              const ThinkingIds& thinking) {
  RequestLimits limits;
  limits.vocab_size = model.vocab_size;
  limits.size = SchedulerOptionsOf(config, model).request_size();
  limits.longest_token_bytes = LongestTokenBytes(tokenizer);
  limits.max_detokenize_ids = config.server.max_detokenize_ids;
  limits.token_count = TokenCountOf(tokenizer, model, defaults);
  limits.missing_tokens = MissingTokensOf(tokenizer, model, defaults);
  const std::vector<int>& eos = EndIdsOf(model, defaults);
  limits.eos_ids.assign(eos.begin(), eos.end());
  limits.default_sampling = DefaultSampling(defaults);
  limits.thinking = thinking;
  return limits;
}

ModelCard ModelCardOf(const Config& config, const ModelConfig& model, const RequestLimits& limits,
                      const std::string& numerics_class) {
  return {.name = config.served_model_name,
          .architecture = model.architecture,
          .model_type = model.model_type,
          .model_path = ModelDirectory(config),
          .vocab_size = model.vocab_size,
          .max_seq_len = config.max_seq_len,
          .max_batch_size = config.max_batch_size,
          .tokens_per_block = BlockTokens(config, model),
          .mtp_modules = model.mtp_module_count(),
          .max_draft_len = MaxDraftLen(config),
          .eos_ids = limits.eos_ids,
          .bos_id = model.bos_token_id,
          .default_sampling = limits.default_sampling,
          .backend = NameOf(config.backend),
          .numerics_class = numerics_class,
          .version = kVersion};
}

}  // namespace foredraft
