#pragma once

// What the leader believes of a worker's messages, but for results (result_check.h). A worker is another
// process, perhaps on another host: whatever it sends may end its rank, never the leader. Pure.
//
// Every function returns INVALID_ARGUMENT that names the field, its value and what is allowed, on one line.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "foredraft/worker/v1/worker.pb.h"
#include "ranks/membership.h"

namespace foredraft {

// What the configuration and the model allow in the messages of every rank. The leader has it from its start,
// before a worker dials.
struct RankLimits {
  int32_t vocab_size = 0;
  int32_t block_count = 0;  // of the KV cache, scratch block included; 0: the rank's memory decides
  int32_t max_batch_size = 0;
  int32_t max_draft_len = 0;
};

// The most bytes of a message that these limits allow: a result with logprobs for every token.
int64_t LargestMessage(const RankLimits& limits);

// Sizes only: whether the worker belongs to the group is Membership's to say.
absl::Status CheckJoin(const worker::v1::WorkerJoin& join);
absl::Status CheckLoading(const worker::v1::WorkerLoading& loading);
// `other`: a rank that is ready already, or null. All ranks have caches and graphs alike.
absl::Status CheckReady(const worker::v1::WorkerReady& ready, const RankLimits& limits,
                        const WorkerView* other);
absl::Status CheckStoreKey(absl::string_view key);
// `stored_bytes`: of the values that the group has.
absl::Status CheckStoreSet(const worker::v1::StoreSet& set, int64_t stored_bytes);

// Text from a worker as part of a log line: cut after 256 bytes, control characters as '?'.
std::string ShowPeerText(absl::string_view text);

}  // namespace foredraft
