#include "ranks/message_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ranks/plan_codec.h"
#include "ranks/range_check.h"

namespace foredraft {
namespace {

constexpr size_t kLongestText = 256;
constexpr size_t kLargestJoin = size_t{1} << 16;
constexpr int32_t kMostBlocks = 1 << 24;  // 2^30 positions, at 64 tokens per block
constexpr int32_t kMostGraphs = 1 << 16;
constexpr int64_t kMostWeightBytes = int64_t{1} << 50;
constexpr size_t kLargestValue = size_t{1} << 20;
constexpr int64_t kMostStoredBytes = int64_t{1} << 26;

absl::Status CheckText(absl::string_view field, absl::string_view text) {
  if (text.size() > kLongestText) {
    return RefuseField(field, static_cast<int64_t>(text.size()), absl::StrCat("0..", kLongestText, " bytes"));
  }
  if (ShowPeerText(text) == text) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", ShowPeerText(text), ", allowed text without control characters"));
}

// The first status that is not ok, or ok.
template <class... Statuses>
absl::Status First(const Statuses&... statuses) {
  absl::Status first;
  ((first.ok() ? void(first = statuses) : void()), ...);
  return first;
}

}  // namespace

int64_t LargestMessage(const PlanLimits& limits) {
  return std::max<int64_t>(LargestResult(limits), 2 * kLargestValue);
}

absl::Status CheckJoin(const worker::v1::WorkerJoin& join) {
  const size_t bytes = join.ByteSizeLong();
  if (bytes > kLargestJoin) {
    return RefuseField("join", static_cast<int64_t>(bytes), absl::StrCat("0..", kLargestJoin, " bytes"));
  }
  return First(CheckText("join.version", join.version()), CheckText("join.model_hash", join.model_hash()),
               CheckText("join.numerics_class", join.numerics_class()),
               CheckText("join.device", join.device()), CheckText("join.host", join.host()),
               CheckText("join.gpu", join.gpu()));
}

absl::Status CheckLoading(const worker::v1::WorkerLoading& loading) {
  return First(CheckRange("loading.total_bytes", loading.total_bytes(), 0, kMostWeightBytes),
               CheckRange("loading.done_bytes", loading.done_bytes(), 0, loading.total_bytes()));
}

absl::Status CheckReady(const worker::v1::WorkerReady& ready, int32_t block_count, const WorkerView* other) {
  if (other != nullptr) {
    return First(CheckEqual("ready.block_count", ready.block_count(), other->block_count),
                 CheckEqual("ready.graph_count", ready.graph_count(), other->graph_count));
  }
  const absl::Status blocks = block_count > 0
                                  ? CheckEqual("ready.block_count", ready.block_count(), block_count)
                                  : CheckRange("ready.block_count", ready.block_count(), 2, kMostBlocks);
  return First(blocks, CheckRange("ready.graph_count", ready.graph_count(), 0, kMostGraphs));
}

absl::Status CheckStoreKey(absl::string_view key) { return CheckText("store.key", key); }

absl::Status CheckStoreSet(const worker::v1::StoreSet& set, int64_t stored_bytes) {
  const int64_t bytes = static_cast<int64_t>(set.value().size());
  return First(CheckStoreKey(set.key()), CheckRange("store_set.value bytes", bytes, 0, kLargestValue),
               CheckRange("bytes of all values", stored_bytes + bytes, 0, kMostStoredBytes));
}

std::string ShowPeerText(absl::string_view text) {
  std::string shown(text.substr(0, kLongestText));
  std::replace_if(
      shown.begin(), shown.end(),
      [](char letter) { return static_cast<unsigned char>(letter) < ' ' || letter == 0x7f; }, '?');
  return shown;
}

}  // namespace foredraft
