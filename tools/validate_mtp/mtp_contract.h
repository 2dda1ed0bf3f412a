#pragma once

// The serving side of the MTP execution contract for DeepSeek-V4: seven pure functions on arrays in host
// memory (docs/mtp-contract.md, which also compares them with V3's ops). They are the executable
// specification of what decode_rows, verify_drafts, emitted_rows, next_draft_rows and store_drafts compute
// inside a captured step; no step calls them. The order of checks, the padding and the meaning of kv_len are
// the contract's.
//
// Token rows are packed: request after request without gaps. A row is indexed by its hidden state, as the
// contract has it: the MTP row at position p takes the token of position p + 1. The ops index the same row by
// its token, so their positions are one higher (docs/speculation.md section 0).
//
// Errors: INVALID_ARGUMENT for lengths, shapes and values that contradict each other; OUT_OF_RANGE for an
// index outside the array that it indexes. Both name field, value and what is allowed. An index i in [-n, -1]
// counts from the end of an array of n elements. Thread-safe.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace foredraft {

// Values in row-major order. The product of `shape` is the number of values; no dimension: one value.
template <class T>
struct ShapedArray {
  std::vector<int64_t> shape;
  std::vector<T> values;
};
using TokenArray = ShapedArray<int64_t>;
using LogitArray = ShapedArray<float>;

// Shifts each packed prompt left by one and puts the token sampled after it into its last place: the MTP ids
// of a prefill. Returns [N].
absl::StatusOr<std::vector<int64_t>> BuildMtpPrefillInputIds(absl::Span<const int64_t> input_ids,  // [N]
                                                             absl::Span<const int64_t> seq_lens,   // [B], > 0
                                                             absl::Span<const int64_t> next_tokens  // [B]
);

// Context-parallel prefill: the next tokens that this partition sampled, in the order of all requests.
// Returns [request_count]; requests that are not listed have 0, and of several entries for one request the
// last counts.
absl::StatusOr<std::vector<int64_t>> RestoreCpPrefillNextTokens(
    absl::Span<const int64_t> local_next_tokens,       // [M]
    absl::Span<const int64_t> output_request_indices,  // [M], in [-request_count, request_count)
    int64_t request_count);

// BuildMtpPrefillInputIds, scattered into the padded order of all partitions. Returns [padded_token_count];
// places without a token have id 0, which is also BOS.
absl::StatusOr<std::vector<int64_t>> BuildMtpPrefillInputIdsCp(
    absl::Span<const int64_t> input_ids,            // [N]
    absl::Span<const int64_t> seq_lens,             // [B], > 0
    absl::Span<const int64_t> valid_token_indices,  // [N], in [-padded_token_count, padded_token_count)
    int64_t padded_token_count,
    absl::Span<const int64_t> restored_next_tokens  // [B]
);

// The target's rows of a decode step that verifies drafts: next_n + 1 per request.
struct MainDecodeInputs {
  std::vector<int64_t> input_ids;     // [B * (next_n + 1)], or [pad_to]: zeros behind
  std::vector<int32_t> position_ids;  // [B * (next_n + 1)], or [pad_to]: zeros behind
  std::vector<int64_t> kv_len;        // [B]: the argument's + next_n + 1
};

// The requests of such a step. Borrowed arrays; W is the number of drafts per request.
struct MainDecodeRequests {
  absl::Span<const int64_t> current_tokens;  // [B]
  absl::Span<const int64_t> spec_tokens;     // [B, W]
  absl::Span<const int64_t> accepted_num;    // [B], 0..W
  absl::Span<const int64_t> kv_len;          // [B], int32
};

// A request's row is its current token and then its drafts. It is filled up with its last element, and then
// only its last next_n + 1 elements are kept: with W > next_n the current token falls out. The last element
// is at position kv_len, which may leave negative positions in front. accepted_num is checked and not used:
// the caller has chosen the current tokens by it.
absl::StatusOr<MainDecodeInputs> BuildMainDecodeInputIdsForMtp(const MainDecodeRequests& requests,
                                                               int64_t next_n,
                                                               std::optional<int64_t> pad_to = std::nullopt);

// The ids of the first MTP forward of a decode step: the tokens that the target sampled, flattened.
std::vector<int64_t> BuildMtpDecodeInputIds(const TokenArray& main_next_tokens);

// Accepted drafts per request: the longest prefix in which drafts and the target's own tokens are equal, over
// the columns that both have. The target's token after it is not counted. All zeros for a prefill. Returns
// [B].
absl::StatusOr<std::vector<int32_t>> VerifyMtpSpecTokens(
    const TokenArray& spec_tokens,       // [B, n]
    const TokenArray& main_next_tokens,  // [B * m], or [B, ...]
    bool is_prefill = false);

// The MTP state of a batch between steps.
struct MtpState {
  TokenArray spec_tokens;             // [B, W]
  std::vector<int64_t> accepted_num;  // [B]
  std::vector<int64_t> kv_len;        // [B]
  bool is_prefill = false;
  int64_t step_index = 0;
};

// What a step computed. Sampled tokens, or logits whose argmax over the last dimension they are (ties: the
// lowest id; NaN never wins). The two index lists are read after a prefill only.
struct MtpStepResult {
  std::optional<TokenArray> sampled_tokens;
  std::optional<LogitArray> logits;  // [..., V]
  std::optional<std::vector<int64_t>>
      output_request_indices;                               // rows of sampled_tokens to keep, in this order
  std::optional<std::vector<int64_t>> final_token_indices;  // one draft per entry: indices of what was kept
  int64_t next_n = 1;                                       // drafts per request
  int64_t q_len = 1;                                        // rows per request of the prefill
};

// After a prefill: a draft per request (final_token_indices, else the last column of a 2-D array, else all
// values) becomes the first of next_n, the rest 0; accepted_num is 0, kv_len grows by (q_len - 1) + (next_n -
// 1). After a decode step: the draft of a request (its value, or the one in column accepted_num, at most the
// last column) becomes entry accepted_num of its row. Entries before it are kept, later ones are 0. If
// accepted_num is W, the draft becomes the first entry of an empty row. kv_len and step_index grow by 1.
absl::StatusOr<MtpState> UpdateMtpStateAfterStep(const MtpState& state, const MtpStepResult& result);

}  // namespace foredraft
