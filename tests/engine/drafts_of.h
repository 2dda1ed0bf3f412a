#pragma once

#include <cstdint>
#include <vector>

#include "engine/rank_engine.h"

namespace foredraft {

// The drafts of the last step for a slot. No plan may be in flight.
inline std::vector<int32_t> DraftsOf(const RankEngine& engine, int slot) {
  const Rank& rank = engine.rank();
  const auto stream = rank.device->CreateStream();
  SlotDrafts drafts;
  rank.device->CopyToHost(*stream, &drafts, rank.slots.arrays().drafts + slot, sizeof(drafts));
  stream->Synchronize();
  return {drafts.tokens, drafts.tokens + drafts.draft_count};
}

}  // namespace foredraft
