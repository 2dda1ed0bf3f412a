#pragma once

// Phase, thoughts and gate of a sequence, which its tokens change. The scheduler follows them on the host,
// the kernels on the device: both call these functions.

#include <cstdint>

namespace foredraft {

// Whether a reasoning model is between its thinking tokens or outside of them. A decode step has the phase of
// its first row.
enum class Phase : int32_t { kAnswer = 0, kThinking = 1 };

// The tokens that begin and end the thinking phase; -1 where the model has none. A request keeps the ids that
// were configured when it arrived, also across a reload. Trivially copyable: slots hold it in device memory.
struct ThinkingIds {
  int32_t begin = -1;
  int32_t end = -1;

  // The phase after `token_id`.
  constexpr Phase PhaseAfter(Phase phase, int32_t token_id) const {
    if (token_id == begin) return Phase::kThinking;
    return token_id == end ? Phase::kAnswer : phase;
  }
  bool operator==(const ThinkingIds&) const = default;
};

// Where a sequence is in its thoughts. Trivially copyable.
struct ThoughtState {
  Phase phase = Phase::kAnswer;
  int32_t count = 0;  // output tokens inside of thoughts, without those that begin and end a thought

  constexpr ThoughtState After(const ThinkingIds& ids, int32_t token_id) const {
    const bool is_mark = token_id == ids.begin || token_id == ids.end;
    return {ids.PhaseAfter(phase, token_id), count + (phase == Phase::kThinking && !is_mark ? 1 : 0)};
  }
  bool operator==(const ThoughtState&) const = default;
};

// Whether the tokens of a constrained sequence are free, and which token takes it behind the gate, where its
// grammar holds (docs/structured-output.md section 5).
enum class Gate : int32_t {
  kBehind = 0,    // the grammar holds: a row chooses only with a mask (no-mask-no-token)
  kThinking = 1,  // free up to the end of thinking
  kTrigger = 2,   // free up to one of the trigger ids
};

// The tokens that move the gate of a constrained sequence. A view of what its slot holds.
struct GateTokens {
  ThinkingIds thinking;
  bool opens_thought = false;  // thinking.begin, as first token or before a trigger, sets kThinking
  const int32_t* trigger_ids = nullptr;
  int32_t trigger_count = 0;
};

// The gate after `token_id`; `is_first`: the first token after the prompt.
constexpr Gate GateAfter(const GateTokens& tokens, Gate gate, int32_t token_id, bool is_first) {
  const bool opens = tokens.opens_thought && token_id == tokens.thinking.begin;
  if (gate == Gate::kThinking) {
    if (token_id != tokens.thinking.end) return gate;
    return tokens.trigger_count > 0 ? Gate::kTrigger : Gate::kBehind;
  }
  if (gate == Gate::kBehind) return is_first && opens ? Gate::kThinking : Gate::kBehind;
  if (opens) return Gate::kThinking;
  for (int32_t i = 0; i < tokens.trigger_count; ++i) {
    if (tokens.trigger_ids[i] == token_id) return Gate::kBehind;
  }
  return gate;
}

}  // namespace foredraft
