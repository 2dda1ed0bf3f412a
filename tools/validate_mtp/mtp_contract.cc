#include "tools/validate_mtp/mtp_contract.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

template <class... Args>
absl::Status Invalid(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrFormat(format, args...));
}

int64_t Length(absl::Span<const int64_t> values) { return static_cast<int64_t>(values.size()); }

// INVALID_ARGUMENT if `field` has `found` values and the batch needs `wanted`.
absl::Status CheckCount(const char* field, int64_t found, int64_t wanted, const char* meaning) {
  if (found == wanted) return absl::OkStatus();
  return Invalid("%s: %d values, allowed %d, %s", field, found, wanted, meaning);
}

// The place in an array of `size` elements that `index`, perhaps negative, refers to.
absl::StatusOr<int64_t> Place(const char* field, size_t entry, int64_t index, int64_t size) {
  if (index >= -size && index < size) return index < 0 ? index + size : index;
  return absl::OutOfRangeError(
      size == 0 ? absl::StrFormat("%s[%d]: %d, allowed none: the array is empty", field, entry, index)
                : absl::StrFormat("%s[%d]: %d, allowed %d..%d", field, entry, index, -size, size - 1));
}

template <class T>
absl::Status CheckShape(const char* field, const ShapedArray<T>& array) {
  const auto refuse = [&] {
    return Invalid("%s: %d values for shape [%s]", field, array.values.size(),
                   absl::StrJoin(array.shape, ", "));
  };
  int64_t count = 1;
  for (const int64_t size : array.shape) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count)) return refuse();
  }
  return count == static_cast<int64_t>(array.values.size()) ? absl::OkStatus() : refuse();
}

absl::Status CheckAccepted(absl::Span<const int64_t> accepted_num, int64_t batch, int64_t width) {
  RETURN_IF_ERROR(CheckCount("accepted_num", Length(accepted_num), batch, "the requests"));
  for (size_t b = 0; b < accepted_num.size(); ++b) {
    if (accepted_num[b] < 0 || accepted_num[b] > width) {
      return Invalid("accepted_num[%d]: %d, allowed 0..%d, the width of spec_tokens", b, accepted_num[b],
                     width);
    }
  }
  return absl::OkStatus();
}

// The number of columns of an array of `count` values cut into `batch` rows.
absl::StatusOr<int64_t> Columns(const char* field, int64_t count, int64_t batch) {
  if (batch == 0 ? count == 0 : count % batch == 0) return batch == 0 ? 0 : count / batch;
  return Invalid("%s: %d values, allowed multiples of %d, the requests", field, count, batch);
}

absl::StatusOr<TokenArray> Argmax(const LogitArray& logits) {
  RETURN_IF_ERROR(CheckShape("logits", logits));
  if (logits.shape.empty() || logits.shape.back() == 0) {
    return Invalid("logits: shape [%s], allowed a last dimension of at least 1",
                   absl::StrJoin(logits.shape, ", "));
  }
  TokenArray tokens{.shape = {logits.shape.begin(), logits.shape.end() - 1}};
  const int64_t vocab_size = logits.shape.back();
  for (auto row = logits.values.begin(); row != logits.values.end(); row += vocab_size) {
    int64_t best = 0;
    for (int64_t id = 1; id < vocab_size; ++id) {
      if (row[id] > row[best] || row[best] != row[best]) best = id;
    }
    tokens.values.push_back(row[best] != row[best] ? 0 : best);
  }
  return tokens;
}

absl::StatusOr<TokenArray> SampledTokens(const MtpStepResult& result) {
  if (result.sampled_tokens) {
    RETURN_IF_ERROR(CheckShape("sampled_tokens", *result.sampled_tokens));
    return *result.sampled_tokens;
  }
  if (result.logits) return Argmax(*result.logits);
  return Invalid("sampled_tokens: missing, allowed sampled_tokens or logits");
}

// The rows (entries of the first dimension) that `indices` lists.
absl::StatusOr<TokenArray> GatherRows(const TokenArray& tokens, const std::vector<int64_t>& indices) {
  if (tokens.shape.empty()) {
    return Invalid("output_request_indices: given, allowed with sampled tokens that have a dimension");
  }
  const int64_t rows = tokens.shape[0];
  const int64_t width = rows == 0 ? 0 : static_cast<int64_t>(tokens.values.size()) / rows;
  TokenArray kept{.shape = tokens.shape};
  kept.shape[0] = Length(indices);
  for (size_t i = 0; i < indices.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t row, Place("output_request_indices", i, indices[i], rows));
    kept.values.insert(kept.values.end(), tokens.values.begin() + row * width,
                       tokens.values.begin() + (row + 1) * width);
  }
  return kept;
}

// The draft of each request after a prefill.
absl::StatusOr<std::vector<int64_t>> FinalTokens(const MtpStepResult& result) {
  ASSIGN_OR_RETURN(TokenArray tokens, SampledTokens(result));
  if (result.output_request_indices) {
    ASSIGN_OR_RETURN(tokens, GatherRows(tokens, *result.output_request_indices));
  }
  if (!result.final_token_indices && tokens.shape.size() != 2) return std::move(tokens.values);
  std::vector<int64_t> drafts;
  const int64_t count = Length(tokens.values);
  if (result.final_token_indices) {
    const std::vector<int64_t>& indices = *result.final_token_indices;
    for (size_t i = 0; i < indices.size(); ++i) {
      ASSIGN_OR_RETURN(const int64_t place, Place("final_token_indices", i, indices[i], count));
      drafts.push_back(tokens.values[place]);
    }
  } else if (const int64_t width = tokens.shape[1]; width > 0) {
    for (int64_t last = width - 1; last < count; last += width) drafts.push_back(tokens.values[last]);
  }
  return drafts;
}

absl::StatusOr<MtpState> AfterPrefill(const MtpState& state, const MtpStepResult& result) {
  if (result.next_n < 0) return Invalid("next_n: %d, allowed at least 0", result.next_n);
  if (result.q_len < 0) return Invalid("q_len: %d, allowed at least 0", result.q_len);
  ASSIGN_OR_RETURN(const std::vector<int64_t> drafts, FinalTokens(result));
  MtpState next{.spec_tokens = {.shape = {Length(drafts), result.next_n}},
                .accepted_num = std::vector<int64_t>(drafts.size(), 0),
                .kv_len = state.kv_len};
  for (const int64_t draft : drafts) {
    if (result.next_n == 0) break;
    next.spec_tokens.values.push_back(draft);
    next.spec_tokens.values.resize(next.spec_tokens.values.size() + result.next_n - 1, 0);
  }
  for (int64_t& length : next.kv_len) length += (result.q_len - 1) + (result.next_n - 1);
  return next;
}

absl::Status CheckTwoDimensions(const char* field, const TokenArray& tokens) {
  RETURN_IF_ERROR(CheckShape(field, tokens));
  if (tokens.shape.size() == 2) return absl::OkStatus();
  return Invalid("%s: shape [%s], allowed two dimensions, [batch, next_n]", field,
                 absl::StrJoin(tokens.shape, ", "));
}

absl::StatusOr<MtpState> AfterDecode(const MtpState& state, const MtpStepResult& result) {
  ASSIGN_OR_RETURN(const TokenArray sampled, SampledTokens(result));
  RETURN_IF_ERROR(CheckTwoDimensions("spec_tokens", state.spec_tokens));
  const int64_t batch = state.spec_tokens.shape[0];
  const int64_t width = state.spec_tokens.shape[1];
  RETURN_IF_ERROR(CheckAccepted(state.accepted_num, batch, width));
  ASSIGN_OR_RETURN(const int64_t columns, Columns("sampled_tokens", Length(sampled.values), batch));
  if (batch > 0 && columns == 0) return Invalid("sampled_tokens: no value, allowed at least one per request");
  if (batch > 0 && width == 0) return Invalid("spec_tokens: width 0, allowed at least 1");
  MtpState next = state;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t accepted = state.accepted_num[b];
    const int64_t draft = sampled.values[b * columns + std::min(accepted, columns - 1)];
    const auto row = next.spec_tokens.values.begin() + b * width;
    const int64_t entry = accepted < width ? accepted : 0;
    row[entry] = draft;
    std::fill(row + entry + 1, row + width, 0);
  }
  for (int64_t& length : next.kv_len) ++length;
  ++next.step_index;
  return next;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> BuildMtpPrefillInputIds(absl::Span<const int64_t> input_ids,
                                                             absl::Span<const int64_t> seq_lens,
                                                             absl::Span<const int64_t> next_tokens) {
  int64_t sum = 0;
  bool overflow = false;
  for (const int64_t length : seq_lens) overflow = overflow || __builtin_add_overflow(sum, length, &sum);
  if (overflow) return Invalid("seq_lens: a sum beyond int64, allowed %d, the input_ids", input_ids.size());
  if (sum != Length(input_ids)) {
    return Invalid("seq_lens: a sum of %d, allowed %d, the input_ids", sum, input_ids.size());
  }
  RETURN_IF_ERROR(
      CheckCount("next_tokens", Length(next_tokens), Length(seq_lens), "one per request of seq_lens"));
  for (size_t b = 0; b < seq_lens.size(); ++b) {
    if (seq_lens[b] <= 0) return Invalid("seq_lens[%d]: %d, allowed at least 1", b, seq_lens[b]);
  }
  std::vector<int64_t> shifted;
  shifted.reserve(input_ids.size());
  for (size_t b = 0; b < seq_lens.size(); ++b) {
    const absl::Span<const int64_t> prompt = input_ids.subspan(shifted.size(), seq_lens[b]);
    shifted.insert(shifted.end(), prompt.begin() + 1, prompt.end());
    shifted.push_back(next_tokens[b]);
  }
  return shifted;
}

absl::StatusOr<std::vector<int64_t>> RestoreCpPrefillNextTokens(
    absl::Span<const int64_t> local_next_tokens, absl::Span<const int64_t> output_request_indices,
    int64_t request_count) {
  RETURN_IF_ERROR(CheckCount("output_request_indices", Length(output_request_indices),
                             Length(local_next_tokens), "the local_next_tokens"));
  if (request_count < 0) return Invalid("request_count: %d, allowed at least 0", request_count);
  std::vector<int64_t> restored(request_count, 0);
  for (size_t i = 0; i < local_next_tokens.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t request,
                     Place("output_request_indices", i, output_request_indices[i], request_count));
    restored[request] = local_next_tokens[i];
  }
  return restored;
}

absl::StatusOr<std::vector<int64_t>> BuildMtpPrefillInputIdsCp(
    absl::Span<const int64_t> input_ids, absl::Span<const int64_t> seq_lens,
    absl::Span<const int64_t> valid_token_indices, int64_t padded_token_count,
    absl::Span<const int64_t> restored_next_tokens) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> shifted,
                   BuildMtpPrefillInputIds(input_ids, seq_lens, restored_next_tokens));
  if (padded_token_count < 0)
    return Invalid("padded_token_count: %d, allowed at least 0", padded_token_count);
  RETURN_IF_ERROR(
      CheckCount("valid_token_indices", Length(valid_token_indices), Length(shifted), "the input_ids"));
  std::vector<int64_t> padded(padded_token_count, 0);
  for (size_t i = 0; i < shifted.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t place,
                     Place("valid_token_indices", i, valid_token_indices[i], padded_token_count));
    padded[place] = shifted[i];
  }
  return padded;
}

absl::StatusOr<MainDecodeInputs> BuildMainDecodeInputIdsForMtp(const MainDecodeRequests& requests,
                                                               int64_t next_n,
                                                               std::optional<int64_t> pad_to) {
  const int64_t batch = Length(requests.current_tokens);
  ASSIGN_OR_RETURN(const int64_t width, Columns("spec_tokens", Length(requests.spec_tokens), batch));
  RETURN_IF_ERROR(CheckAccepted(requests.accepted_num, batch, width));
  RETURN_IF_ERROR(CheckCount("kv_len", Length(requests.kv_len), batch, "the requests"));
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  if (next_n < 0 || next_n >= kLargest) return Invalid("next_n: %d, allowed 0..%d", next_n, kLargest - 1);
  const int64_t q_len = next_n + 1;
  MainDecodeInputs inputs;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t kv_len = requests.kv_len[b];
    if (kv_len < 0 || kv_len > kLargest) return Invalid("kv_len[%d]: %d, allowed 0..%d", b, kv_len, kLargest);
    const absl::Span<const int64_t> drafts = requests.spec_tokens.subspan(b * width, width);
    std::vector<int64_t> row = {requests.current_tokens[b]};
    row.insert(row.end(), drafts.begin(), drafts.end());
    if (Length(row) < q_len) row.resize(q_len, row.back());
    inputs.input_ids.insert(inputs.input_ids.end(), row.end() - q_len, row.end());
    for (int64_t j = 0; j < q_len; ++j) {
      inputs.position_ids.push_back(static_cast<int32_t>(kv_len - next_n + j));
    }
    inputs.kv_len.push_back(kv_len + q_len);
  }
  if (pad_to && *pad_to > Length(inputs.input_ids)) {
    inputs.input_ids.resize(*pad_to, 0);
    inputs.position_ids.resize(*pad_to, 0);
  }
  return inputs;
}

std::vector<int64_t> BuildMtpDecodeInputIds(const TokenArray& main_next_tokens) {
  return main_next_tokens.values;
}

absl::StatusOr<std::vector<int32_t>> VerifyMtpSpecTokens(const TokenArray& spec_tokens,
                                                         const TokenArray& main_next_tokens,
                                                         bool is_prefill) {
  RETURN_IF_ERROR(CheckTwoDimensions("spec_tokens", spec_tokens));
  RETURN_IF_ERROR(CheckShape("main_next_tokens", main_next_tokens));
  const int64_t batch = spec_tokens.shape[0];
  std::vector<int32_t> accepted(batch, 0);
  if (is_prefill) return accepted;
  if (main_next_tokens.shape.size() != 1 &&
      (main_next_tokens.shape.empty() || main_next_tokens.shape[0] != batch)) {
    return Invalid(
        "main_next_tokens: shape [%s], allowed one dimension, or a first dimension of %d, the requests",
        absl::StrJoin(main_next_tokens.shape, ", "), batch);
  }
  ASSIGN_OR_RETURN(const int64_t columns,
                   Columns("main_next_tokens", Length(main_next_tokens.values), batch));
  const int64_t width = spec_tokens.shape[1];
  for (int64_t b = 0; b < batch; ++b) {
    const auto drafts = spec_tokens.values.begin() + b * width;
    const auto own = main_next_tokens.values.begin() + b * columns;
    accepted[b] =
        static_cast<int32_t>(std::mismatch(drafts, drafts + std::min(width, columns), own).first - drafts);
  }
  return accepted;
}

absl::StatusOr<MtpState> UpdateMtpStateAfterStep(const MtpState& state, const MtpStepResult& result) {
  return state.is_prefill ? AfterPrefill(state, result) : AfterDecode(state, result);
}

}  // namespace foredraft
