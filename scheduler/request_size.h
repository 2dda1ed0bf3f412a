#pragma once

// How large a request may be, prompt and output together, in tokens. The rule exists only here: the server's
// validator, the serving loop, the scheduler and the warm-up apply it. Any thread.

#include <cstdint>
#include <limits>

#include "absl/status/status.h"

namespace foredraft {

struct RequestSizeLimits {
  int max_seq_len = 0;
  int64_t pool_len = std::numeric_limits<int64_t>::max();  // tokens that one rank's KV pool can hold

  // block_count: of the pool, block 0 (scratch) included. draft_rows: the most rows that drafting writes past
  // the last token; they need room in the pool too (plan-bound in scheduler.h). They count in whole blocks,
  // which the pool has in addition to kv_cache_config.max_tokens, so the limit is the same for every K.
  static RequestSizeLimits Of(int max_seq_len, int block_count, int tokens_per_block, int draft_rows) {
    const int64_t rows = int64_t{block_count - 1} * tokens_per_block - draft_rows;
    return {.max_seq_len = max_seq_len, .pool_len = rows / tokens_per_block * tokens_per_block};
  }

  int64_t max_len() const { return pool_len < max_seq_len ? pool_len : max_seq_len; }

  // INVALID_ARGUMENT names field, value and limit. `prompt_field` is the field that the prompt came in.
  absl::Status CheckPrompt(const char* prompt_field, int64_t prompt_len) const;
  absl::Status Check(const char* prompt_field, int64_t prompt_len, int64_t max_tokens) const;
};

}  // namespace foredraft
