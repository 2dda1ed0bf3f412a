#pragma once

// The serving side of the MTP execution contract for DeepSeek-V4: seven pure functions on arrays in host
// memory (docs/mtp-contract.md also compares them with V3's ops). They are the executable specification of
// what decode_rows, verify_drafts, emitted_rows, next_draft_rows and store_drafts compute inside a captured
// step; no step calls them. The order of checks, the padding and the meaning of kv_len follow the contract.
//
// Token rows are packed: request after request without gaps. As in the contract, a row has the position of
// its hidden state: the MTP row at position p takes the token of position p + 1. The ops give the same row
// the position of its token, one higher (docs/speculation.md section 0).
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

// Values in row-major order. The product of `shape` is the number of values; an empty shape means one value.
template <class T>
struct ShapedArray {
  std::vector<int64_t> shape;
  std::vector<T> values;
};
using TokenArray = ShapedArray<int64_t>;
using LogitArray = ShapedArray<float>;

// The MTP ids of a prefill, [N]: shifts each packed prompt left by one and puts the token sampled after it
// into its last place.
absl::StatusOr<std::vector<int64_t>> BuildMtpPrefillInputIds(absl::Span<const int64_t> input_ids,  // [N]
                                                             absl::Span<const int64_t> seq_lens,   // [B], > 0
                                                             absl::Span<const int64_t> next_tokens  // [B]
);

// For context-parallel prefill: the next tokens that this partition sampled, [request_count], in the order of
// all requests. Requests that are not listed have 0; of several entries for one request the last counts.
absl::StatusOr<std::vector<int64_t>> RestoreCpPrefillNextTokens(
    absl::Span<const int64_t> local_next_tokens,       // [M]
    absl::Span<const int64_t> output_request_indices,  // [M], in [-request_count, request_count)
    int64_t request_count);

// BuildMtpPrefillInputIds, scattered into the padded order of all partitions. Returns [padded_token_count];
// places without a token have id 0, which is also the BOS id.
absl::StatusOr<std::vector<int64_t>> BuildMtpPrefillInputIdsCp(
    absl::Span<const int64_t> input_ids,            // [N]
    absl::Span<const int64_t> seq_lens,             // [B], > 0
    absl::Span<const int64_t> valid_token_indices,  // [N], in [-padded_token_count, padded_token_count)
    int64_t padded_token_count,
    absl::Span<const int64_t> restored_next_tokens  // [B]
);

// The target's rows of a decode step that verifies drafts: next_n + 1 per request.
struct MainDecodeInputs {
  std::vector<int64_t> input_ids;     // [B * (next_n + 1)], or [pad_to], zeros at the end
  std::vector<int32_t> position_ids;  // [B * (next_n + 1)], or [pad_to], zeros at the end
  std::vector<int64_t> kv_len;        // [B]: MainDecodeRequests::kv_len + next_n + 1
};

// The requests of a decode step that verifies drafts. Arrays are borrowed; W is the number of drafts per
// request.
struct MainDecodeRequests {
  absl::Span<const int64_t> current_tokens;  // [B]
  absl::Span<const int64_t> spec_tokens;     // [B, W]
  absl::Span<const int64_t> accepted_num;    // [B], 0..W
  absl::Span<const int64_t> kv_len;          // [B], int32
};

// A request's row is its current token followed by its drafts. If short, it is padded with its last element;
// then only its last next_n + 1 elements are kept, so with W > next_n the current token is dropped. The last
// element is at position kv_len, so the first positions may be negative. accepted_num is checked but not
// used: the caller has already chosen the current tokens by it.
absl::StatusOr<MainDecodeInputs> BuildMainDecodeInputIdsForMtp(const MainDecodeRequests& requests,
                                                               int64_t next_n,
                                                               std::optional<int64_t> pad_to = std::nullopt);

// The ids of the first MTP forward of a decode step: the tokens that the target sampled, flattened.
std::vector<int64_t> BuildMtpDecodeInputIds(const TokenArray& main_next_tokens);

// The number of accepted drafts per request, [B]: the length of the longest prefix in which drafts and the
// target's own tokens are equal, over the columns that both have. The target's token after the prefix is not
// counted. All zeros for a prefill.
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

// The result of a step: sampled tokens, or logits, from which the tokens are the argmax over the last
// dimension (ties: the lowest id; NaN never wins). The two index lists are read only after a prefill.
struct MtpStepResult {
  std::optional<TokenArray> sampled_tokens;
  std::optional<LogitArray> logits;  // [..., V]
  std::optional<std::vector<int64_t>>
      output_request_indices;                               // rows of sampled_tokens to keep, in this order
  std::optional<std::vector<int64_t>> final_token_indices;  // indices of the tokens that give the drafts,
                                                            // among the kept rows
  int64_t next_n = 1;                                       // drafts per request
  int64_t q_len = 1;                                        // rows per request of the prefill
};

// After a prefill: one draft per request (by final_token_indices, else the last column of a 2-D array, else
// all values) becomes the first of next_n entries, and the rest are 0; accepted_num is 0, and kv_len grows by
// (q_len - 1) + (next_n - 1). After a decode step: the draft of a request (its only value, or the value in
// column accepted_num, at most the last column) becomes entry accepted_num of its row. Entries before it are
// kept, later entries are 0. If accepted_num is W, the draft becomes the first entry of an empty row. kv_len
// and step_index grow by 1.
absl::StatusOr<MtpState> UpdateMtpStateAfterStep(const MtpState& state, const MtpStepResult& result);

}  // namespace foredraft
