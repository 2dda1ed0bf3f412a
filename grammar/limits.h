#pragma once

// Bounds on the work that a constraint may cost. They count steps and measure no time, so a request gets the
// same answer on every machine.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace foredraft {

struct GrammarLimits {
  int64_t max_source_bytes = 256 << 10;
  int32_t max_nodes = 200'000;          // of the intermediate representation (grammar/ir.h)
  int32_t max_depth = 64;               // open JSON objects and arrays; nesting of sources
  int32_t max_branches = 5'000;         // of a schema, after anyOf, oneOf and allOf are merged
  int32_t max_product_states = 20'000;  // of one product automaton
  int32_t max_configurations = 1'024;   // of one parse state
  int64_t max_compile_steps = 2'000'000;
  int64_t max_mask_steps = 50'000;  // of one mask, and of one token that an output takes: see MaskWork
  int64_t table_bytes = int64_t{32} << 20;  // states and masks of a grammar; a full table is replaced
};

// The work that one call spends on masks and tokens of an output. A step is about 50 ns: the time to visit
// kConfigsPerStep configurations or moves (edges that read nothing), to compare kEdgesPerStep edges with a
// byte, or to visit kTrieNodesPerStep nodes of the vocabulary's tries. Transitions that the grammar knows
// already cost nothing here. max_mask_steps counts them as if they were made anew, so that no limit depends
// on earlier calls.
struct MaskWork {
  static constexpr int64_t kNoEnd = int64_t{1} << 62;
  static constexpr int kTrieNodesPerStep = 16;
  static constexpr int kConfigsPerStep = 2;
  static constexpr int kEdgesPerStep = 8;
  int64_t allowance = kNoEnd;  // once `steps` exceeds it, the call gives up with ABORTED and may be repeated
  // True: the call also waits while one without an allowance uses the same grammar. False: it gives up with
  // ABORTED then.
  bool waits = true;
  int64_t steps = 0;

  bool is_spent() const { return steps > allowance; }
};

// Counts the steps of one compilation. Once it is spent it stays spent, so a loop may test it late.
// Not thread-safe.
class WorkCounter {
 public:
  explicit WorkCounter(int64_t limit) : limit_(limit) {}
  // False once more than the limit was charged.
  bool Charge(int64_t steps) { return (spent_ += steps) <= limit_; }
  bool is_spent() const { return spent_ > limit_; }
  int64_t spent() const { return spent_; }
  // INVALID_ARGUMENT, naming the limit, if it is spent.
  absl::Status status() const {
    if (!is_spent()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "more than %d steps to compile, allowed at most constraints.max_compile_steps", limit_));
  }

 private:
  int64_t limit_;
  int64_t spent_ = 0;
};

}  // namespace foredraft
