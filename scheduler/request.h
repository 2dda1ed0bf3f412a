#pragma once

// A validated, tokenized request, which the server submits to the scheduler, and the updates that come back.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/plan.h"
#include "scheduler/request_constraint.h"
#include "scheduler/sampling_params.h"

namespace foredraft {

using SteadyTime = std::chrono::steady_clock::time_point;

enum class FinishReason : int32_t { kNone, kStop, kLength, kCancelled, kDeadline, kError };

// Priorities are -kMaxPriority .. kMaxPriority, so that ageing bounds how long a request waits
// (wait_queue.h).
inline constexpr int32_t kMaxPriority = 100;

struct Request {
  uint64_t id = 0;  // unique in the process; the client's request_id string stays with the server
  std::vector<int32_t> prompt_ids;
  SamplingParams sampling;        // seed resolved
  int32_t max_tokens = 1;         // >= 1; the bound of prompt + max_tokens is in request_size.h
  std::vector<int32_t> stop_ids;  // EOS ids (unless ignore_eos) and the request's own, at most kMaxStopIds
  int32_t logprob_count = -1;
  int32_t draft_cap = 7;                // per-request cap on drafts verified per step
  bool strict_acceptance = false;       // opts out of relaxed acceptance
  int32_t priority = 0;                 // higher first, at most kMaxPriority
  uint64_t client = 0;                  // whose it is: clients take turns (wait_queue.h)
  std::string caller;                   // the name of the API's token; empty: none
  uint64_t reuse_scope = 0;             // requests of one scope may share blocks of equal prefixes
  Phase prompt_phase = Phase::kAnswer;  // after the whole prompt
  ThinkingIds thinking;
  ThinkingBudget thinking_budget;
  RequestConstraint constraint;
  SteadyTime arrival;
  SteadyTime deadline = SteadyTime::max();
};

// One decode step in which the request got tokens: accepted = token count - 1.
struct StepStats {
  int32_t drafts_verified = 0;
  int32_t accepted = 0;
  int32_t relaxed = 0;          // emitted drafts that the strict rule rejects
  bool ends_in_draft = false;   // the last token is an accepted draft, too (SlotResult)
  int32_t outside_grammar = 0;  // 1: the constraint refuses a draft
  int32_t forced_drafts = 0;    // of those verified: text that the constraint forces, not the drafter's
  bool forced = false;          // forced acceptance: the tokens are not the model's
};

// What one iteration changed for one request. Delivered in order; the last one has finish != kNone.
struct RequestUpdate {
  uint64_t request_id = 0;
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;  // one per token, if requested
  bool first_token = false;            // token_ids[0] came from the prefill
  bool has_step = false;               // a decode step produced tokens: `step` is valid
  StepStats step;
  int32_t queried_tokens = 0;  // prompt tokens looked up in the prefix index, and
  int32_t cached_tokens = 0;   // those taken from it; set with the first token
  double queue_seconds = 0;    // arrival to admission; set with the first token
  FinishReason finish = FinishReason::kNone;
  absl::Status error;  // for kError: UNAVAILABLE where a rank was lost
};

// Receives all updates of one iteration. Called on the scheduler thread; must not block.
using UpdateSink = std::function<void(std::vector<RequestUpdate>)>;

}  // namespace foredraft
