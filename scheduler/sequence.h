#ifndef FOREDRAFT_SCHEDULER_SEQUENCE_H_
#define FOREDRAFT_SCHEDULER_SEQUENCE_H_

// One request's progress, as far as the scheduler knows it. Owner: Scheduler. Thread: scheduler.
//
// | from | to | when | slot and blocks |
// |---|---|---|---|
// | waiting | prefilling | admitted | takes both, the whole prompt's blocks |
// | prefilling | decoding | its last prompt chunk is planned | - |
// | decoding | swapped | preempted | gives both back, has an image |
// | swapped | decoding | there is room again | takes both, the image is freed |
// | any | ended | stop, limit, cancel, deadline, error | gives both back |
//
// Positions are those of docs/speculation.md: `length` tokens are in the target's cache, the last committed
// token is at position `length`.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler/plan.h"
#include "scheduler/request.h"

namespace foredraft {

enum class SequenceState { kWaiting, kPrefilling, kDecoding, kSwapped, kEnded };

struct Sequence {
  // Constant after Submit.
  Request request;
  uint64_t arrival_number = 0;
  int32_t prompt_len = 0;    // m
  int32_t length_limit = 0;  // min(max_seq_len, m + max_tokens) - 1
  int extent_blocks = 0;     // blocks at its largest extent

  SequenceState state = SequenceState::kWaiting;

  // Constant from admission on.
  int rank = -1;
  bool swappable = false;  // its extent is reserved in the host store, else in the pool
  int32_t reused_len = 0;
  double queue_seconds = 0;
  uint64_t admitted_in = 0;  // plan number

  // While it has a place on the device.
  int slot = -1;
  std::vector<int32_t> blocks;  // in position order
  // While it is swapped.
  uint64_t image_id = 0;
  int image_block_count = 0;

  // Prompt: positions below these are planned, and offered to the prefix index.
  int32_t prompt_planned = 0;
  int offered_block_count = 0;
  uint64_t offered_node = 0;  // the prefix index's node of the last of them
  bool may_offer = true;      // false once swapped: its blocks are no longer those that were filled

  // Output.
  int32_t length = 0;           // p as of the last Commit; m from the plan of the last prompt chunk on
  int32_t unresolved_rows = 0;  // sum of K_j + 1 over launched, uncommitted decode steps
  int unresolved_steps = 0;     // how many those are
  Phase phase = Phase::kAnswer;

  // Launched, uncommitted plans that name it. Nothing it holds is given back before this is 0.
  int plans_in_flight = 0;
  uint64_t last_plan = 0;  // number of the last plan that names it
  uint64_t live_in = 0;    // number of the last plan in which it has room to be live

  int32_t length_upper() const { return std::min(length + unresolved_rows, length_limit); }

  // Every unresolved step gives at least one token: nothing is left to decode.
  bool surely_finished() const { return length + unresolved_steps >= length_limit; }
};

// Who comes first: the higher priority, then the earlier arrival.
struct ComesFirst {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->request.priority != b->request.priority) return a->request.priority > b->request.priority;
    return a->arrival_number < b->arrival_number;
  }
};

}  // namespace foredraft

#endif  // FOREDRAFT_SCHEDULER_SEQUENCE_H_
