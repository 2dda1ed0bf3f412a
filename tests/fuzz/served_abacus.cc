#include "tests/fuzz/served_abacus.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <utility>

#include "base/check.h"
#include "grammar/grammar.h"
#include "kernels/slot_arrays.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

constexpr int kVocabSize = 640;
constexpr int kMostPlayedTokens = 96;

// Updates as a scheduler delivers them: the prefill's token, then steps of accepted drafts and one more
// token.
class PretendedEngine {
 public:
  explicit PretendedEngine(const Request& request) : request_(request), random_(request.sampling.seed) {
    left_ = std::min<int64_t>(request.max_tokens, kMostPlayedTokens);
  }

  RequestUpdate Next() {
    RequestUpdate update;
    update.first_token = std::exchange(first_, false);
    if (update.first_token) {
      update.cached_tokens = static_cast<int32_t>(random_() % request_.prompt_ids.size());
      Emit(update);
    }
    // The first token may come with the step that its prompt's iteration goes on with.
    if (left_ > 0 && update.finish == FinishReason::kNone && (!update.first_token || random_() % 2 == 0))
      Step(update);
    if (left_ == 0 && update.finish == FinishReason::kNone) update.finish = FinishReason::kLength;
    return update;
  }

 private:
  void Step(RequestUpdate& update) {
    update.has_step = true;
    update.step.drafts_verified = static_cast<int32_t>(random_() % (request_.draft_cap + 1));
    const auto accepted = static_cast<int64_t>(random_() % (update.step.drafts_verified + 1));
    for (int64_t i = 0; i <= accepted && left_ > 0 && update.finish == FinishReason::kNone; ++i) Emit(update);
    update.step.accepted = static_cast<int32_t>(update.token_ids.size()) - 1 - (update.first_token ? 1 : 0);
  }

  void Emit(RequestUpdate& update) {
    const int32_t id = Token();
    update.token_ids.push_back(id);
    if (request_.logprob_count >= 0) {
      update.logprobs.push_back({.token_id = id, .logprob = -0.5f});
      for (int i = 0; i < request_.logprob_count; ++i)
        update.logprobs.back().top.push_back({i, -0.5f - static_cast<float>(i)});
    }
    --left_;
    if (std::count(request_.stop_ids.begin(), request_.stop_ids.end(), id) > 0)
      update.finish = FinishReason::kStop;
  }

  int32_t Token() {
    const auto pick = [this](const std::vector<int32_t>& ids) { return ids[random_() % ids.size()]; };
    const uint64_t choice = random_() % 64;
    if (choice == 0 && !request_.stop_ids.empty()) return pick(request_.stop_ids);
    return choice < 32 ? pick(request_.prompt_ids) : static_cast<int32_t>(random_() % kVocabSize);
  }

  const Request& request_;
  std::mt19937_64 random_;
  int64_t left_ = 0;
  bool first_ = true;
};

// The text of all tokens, as their marks say, is what was sent, and a stop string that was found. A chat's
// answer is in parts; what spells out calls is in none.
void CheckText(const ServedAbacus::Answer& answer, const std::vector<std::string>& stops, bool keeps_stop,
               bool is_chat) {
  CHECK(IsValidUtf8(answer.whole.text)) << answer.whole.text;
  CHECK(IsValidUtf8(answer.whole.thinking)) << answer.whole.thinking;
  for (const CallDelta& call : answer.whole.calls) {
    CHECK(IsValidUtf8(call.arguments) && !call.id.empty() && !call.name.empty()) << call.arguments;
  }
  // A stop string that is kept is the end of the text.
  const bool kept = keeps_stop && answer.end.matched_stop.has_value();
  for (const std::string& stop : stops) {
    const size_t at = answer.whole.text.find(stop);
    CHECK(at == std::string::npos || (kept && at + stop.size() == answer.whole.text.size())) << stop;
  }
  CHECK(!kept || is_chat || answer.whole.text.ends_with(*answer.end.matched_stop)) << answer.whole.text;
  int64_t marked = 0;
  for (const TokenMark& mark : answer.whole.marks) marked += mark.text_bytes;
  const size_t matched = answer.end.matched_stop && !kept ? answer.end.matched_stop->size() : 0;
  const auto sent = static_cast<int64_t>(answer.whole.text.size() + answer.whole.thinking.size());
  if (is_chat) {
    CHECK(answer.whole.calls.empty() && matched == 0 && !kept ? marked == sent : marked >= sent) << marked;
    return;
  }
  CHECK_GE(marked, sent + static_cast<int64_t>(matched));
  CHECK(matched > 0 || kept || marked == sent) << marked;
}

void CheckCounts(const ServedAbacus::Answer& answer) {
  const RequestStats& stats = answer.stats;
  CHECK_EQ(answer.whole.marks.size(), answer.whole.token_ids.size());
  CHECK_EQ(static_cast<size_t>(stats.completion_tokens), answer.whole.token_ids.size());
  CHECK_EQ(stats.completion_tokens,
           stats.completion_tokens == 0 ? 0 : 1 + stats.steps + stats.accepted_tokens);
  CHECK_LE(stats.accepted_tokens, stats.draft_tokens);
  CHECK(answer.end.finish == FinishReason::kStop || answer.end.finish == FinishReason::kLength);
}

}  // namespace

ServedAbacus& ServedAbacus::Get() {
  static ServedAbacus* const abacus = new ServedAbacus;
  return *abacus;
}

ServedAbacus::ServedAbacus() {
  auto tokenizer = Tokenizer::Load("deploy/models/abacus/tokenizer.json");
  CHECK(tokenizer.ok()) << tokenizer.status();
  tokenizer_ = *std::move(tokenizer);
  auto format = ChatFormat::Create(*tokenizer_);
  CHECK(format.ok()) << format.status();
  chat_format_ = *std::move(format);
  metrics_ = std::make_unique<Metrics>(MetricsOptions{.model_name = "abacus", .max_draft_len = kMaxDraftLen});
  auto vocabulary = MakeVocabulary(*tokenizer_, kVocabSize, {1});
  CHECK(vocabulary.ok()) << vocabulary.status();
  // As few steps as the configuration allows: a fuzzer wants many inputs.
  constraints_ = std::make_unique<ConstraintCompiler>(
      *std::move(vocabulary),
      ConstraintsConfig{.max_compile_steps = 100'000, .max_mask_steps = 100'000, .cache_mib = 8}, *metrics_);
  validator_ = std::make_unique<RequestValidator>(RequestLimits{.vocab_size = kVocabSize,
                                                                .size = {.max_seq_len = kMaxSeqLen},
                                                                .longest_token_bytes = 16,
                                                                .eos_ids = {1},
                                                                .thinking = {.begin = 628, .end = 629}},
                                                  *tokenizer_, &*chat_format_, "", constraints_.get());
}

void ServedAbacus::CheckRefusal(const absl::Status& status) {
  CHECK_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  CHECK(status.message().find('\n') == absl::string_view::npos) << status;
  CHECK(status.message().find(':') != absl::string_view::npos) << status;
  CHECK(IsValidUtf8({status.message().data(), status.message().size()})) << status;
  CHECK_LT(status.message().size(), size_t{2000})
      << status;  // it travels in the call's trailers, which are bounded
}

void ServedAbacus::CheckRequest(const Request& request) const {
  CHECK(!request.prompt_ids.empty());
  for (const int32_t id : request.prompt_ids) CHECK(id >= 0 && id < kVocabSize) << id;
  for (const int32_t id : request.stop_ids) CHECK(id >= 0 && id < kVocabSize) << id;
  CHECK_LE(request.stop_ids.size(), static_cast<size_t>(kMaxStopIds));
  CHECK_GE(request.max_tokens, 1);
  CHECK_LE(static_cast<int64_t>(request.prompt_ids.size()) + request.max_tokens, kMaxSeqLen);
  CHECK(request.logprob_count >= -1 && request.logprob_count <= kMaxLogprobs) << request.logprob_count;
  CHECK(request.draft_cap >= 0 && request.draft_cap <= kMaxDraftLen) << request.draft_cap;
  const SamplingParams& sampling = request.sampling;
  CHECK(sampling.temperature >= 0 && sampling.temperature <= 100) << sampling.temperature;
  CHECK(sampling.top_p > 0 && sampling.top_p <= 1) << sampling.top_p;
  CHECK(sampling.top_k >= 0 && sampling.top_k <= kVocabSize) << sampling.top_k;
  CHECK(sampling.min_p >= 0 && sampling.min_p <= 1) << sampling.min_p;
  CHECK(sampling.repetition_penalty > 0 && sampling.repetition_penalty <= 100) << sampling.repetition_penalty;
  CHECK(std::abs(sampling.presence_penalty) <= 2) << sampling.presence_penalty;
  CHECK(std::abs(sampling.frequency_penalty) <= 2) << sampling.frequency_penalty;
  CHECK(sampling.min_tokens >= 0 && sampling.min_tokens <= request.max_tokens) << sampling.min_tokens;
  CHECK_LE(sampling.logit_bias.size(), static_cast<size_t>(kMaxLogitBiases));
  for (int32_t lowest = 0; const TokenBias& bias : sampling.logit_bias) {
    CHECK(bias.token_id >= lowest && bias.token_id < kVocabSize) << bias.token_id;
    CHECK(std::abs(bias.bias) <= 100) << bias.bias;
    lowest = bias.token_id + 1;
  }
}

void ServedAbacus::CheckConstraint(const Request& request) {
  const RequestConstraint& constraint = request.constraint;
  if (constraint.grammar == nullptr) return;
  CHECK_EQ(constraint.grammar->vocabulary().size(), kVocabSize);
  CHECK_LE(constraint.trigger_ids.size(), static_cast<size_t>(kMaxTriggerIds));
  CHECK_EQ(request.sampling.min_tokens, 0);
  Matcher matcher(constraint.grammar, constraint.end_ids);
  const auto mask = matcher.Mask();  // or a limit, which ends the request
  CHECK(!mask.ok() || (*mask)->count > 0);
}

ServedAbacus::Answer ServedAbacus::Play(CheckedRequest checked) {
  CheckRequest(checked.request);
  CheckConstraint(checked.request);
  // Before min_tokens nothing ends an answer.
  const std::vector<std::string> stops =
      checked.request.sampling.min_tokens > 0 ? std::vector<std::string>{} : checked.spec.stop;
  const bool is_chat = checked.spec.answer.has_value();
  const bool keeps_stop = checked.spec.keeps_stop;
  CHECK_EQ(static_cast<size_t>(checked.spec.prompt_tokens), checked.request.prompt_ids.size());
  SteadyTime now{};
  PretendedEngine engine(checked.request);
  OutputStream stream(std::move(checked.spec), *tokenizer_, *metrics_);
  Answer answer;
  while (!stream.end().has_value()) {
    now += std::chrono::milliseconds(1);
    answer.deltas.push_back(stream.Apply(engine.Next(), now));
  }
  metrics_->PublishCounts();
  answer.end = *stream.end();
  answer.stats = stream.stats();
  for (const OutputDelta& delta : answer.deltas) answer.whole.Append(delta);
  CheckCounts(answer);
  CheckText(answer, stops, keeps_stop, is_chat);
  return answer;
}

}  // namespace foredraft
