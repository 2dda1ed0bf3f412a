#pragma once

// The leader's checks of a worker's messages, except results (plan_codec.h). A worker is another process,
// perhaps on another host: whatever it sends may end its rank, never the leader. Pure.
//
// Every function returns INVALID_ARGUMENT that names the field, its value and what is allowed, on one line.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "foredraft/worker/v1/worker.pb.h"
#include "ranks/membership.h"
#include "scheduler/field_visitor.h"

namespace foredraft {

// The most bytes of a message that these limits allow.
int64_t LargestMessage(const PlanLimits& limits);

// Sizes only: whether the worker belongs to the group is Membership's to say.
absl::Status CheckJoin(const worker::v1::WorkerJoin& join);
absl::Status CheckLoading(const worker::v1::WorkerLoading& loading);
// block_count: of the KV cache, scratch block included; 0: the rank's memory decides. `other`: a rank that is
// ready already, or null. All ranks have equal numbers of blocks and graphs.
absl::Status CheckReady(const worker::v1::WorkerReady& ready, int32_t block_count, const WorkerView* other);
absl::Status CheckStoreKey(absl::string_view key);
// `stored_bytes`: of all values that the group has so far.
absl::Status CheckStoreSet(const worker::v1::StoreSet& set, int64_t stored_bytes);

// Text from a worker as part of a log line: cut after 256 bytes, control characters as '?'.
std::string ShowPeerText(absl::string_view text);

}  // namespace foredraft
