#include "engine/spec/eagle3/eagle3_tokens.h"

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

absl::Status Refuse(const TensorLocation& tensor, const std::string& value, const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: %s, allowed %s", tensor.file->path(),
                                                    tensor.entry->name, value, allowed));
}

absl::StatusOr<std::vector<int64_t>> ReadDistances(const TensorLocation& d2t, const DraftHead& head) {
  if (d2t.entry->dtype != "I64" || d2t.entry->shape != std::vector<int64_t>{head.draft_vocab_size}) {
    return Refuse(d2t, absl::StrFormat("%s of %d bytes", d2t.entry->dtype, d2t.entry->bytes),
                  absl::StrFormat("I64 [%d], draft_vocab_size", head.draft_vocab_size));
  }
  std::vector<int64_t> distances(head.draft_vocab_size);
  RETURN_IF_ERROR(d2t.file->Read(*d2t.entry, 0, d2t.entry->bytes, distances.data()));
  return distances;
}

}  // namespace

absl::Status ReadDraftTokens(const Checkpoint& checkpoint, DraftHead& head) {
  const int own = head.draft_vocab_size, all = head.layer.vocab_size;
  const TensorLocation lm_head = checkpoint.Find("lm_head.weight");
  head.own_lm_head = lm_head.entry != nullptr;
  if (head.own_lm_head && head.layer.tie_word_embeddings) {
    return Refuse(lm_head, "present", "none with tie_word_embeddings: true");
  }
  const TensorLocation d2t = checkpoint.Find("d2t");
  if (own < all && (!head.own_lm_head || d2t.entry == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: no tensor %s, which draft_vocab_size %d of vocab_size %d needs",
                        checkpoint.main_file(), head.own_lm_head ? "d2t" : "lm_head.weight", own, all));
  }
  if (d2t.entry == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<int64_t> distances, ReadDistances(d2t, head));
  std::vector<bool> named(all);
  for (int i = 0; i < own; ++i) {
    // Compares without adding: a hostile distance would overflow the sum.
    if (distances[i] < -i || distances[i] >= all - i) {
      return Refuse(d2t, absl::StrFormat("element %d: %d", i, distances[i]),
                    absl::StrFormat("%d..%d, to a token of the target", -i, all - 1 - i));
    }
    const auto token = static_cast<int32_t>(i + distances[i]);
    if (named[token]) {
      return Refuse(d2t, absl::StrFormat("element %d: %d", i, distances[i]),
                    absl::StrFormat("a token that no element before names; token %d is named twice", token));
    }
    named[token] = true;
    head.token_ids.push_back(token);
  }
  bool same = own == all;
  for (int i = 0; i < own; ++i) same = same && head.token_ids[i] == i;
  if (same) head.token_ids.clear();
  return absl::OkStatus();
}

std::vector<int32_t> RandomDraftTokens(int count, int vocab_size) {
  std::vector<int32_t> tokens;
  if (count == vocab_size) return tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(i * vocab_size / count));
  return tokens;
}

}  // namespace foredraft
