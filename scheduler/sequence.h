#pragma once

// One request's progress as of the last Commit. Owner: Scheduler. Thread: scheduler.
//
// clang-format off
// | from | to | when | slot and blocks |
// |---|---|---|---|
// | waiting | prefilling | admitted | takes both, the whole prompt's blocks |
// | prefilling | decoding | its last prompt chunk is planned | - |
// | decoding | swapped | preempted | releases both, gets an image |
// | swapped | decoding | there is room again | takes both, the image is freed |
// | prefilling, decoding, swapped | waiting | a rank was lost (resume) | has none any more |
// | any | ended | stop, limit, cancel, deadline, error | releases both |
// clang-format on
//
// Positions are those of docs/speculation.md: `length` tokens are in the target's cache, the last committed
// token is at position `length`.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "scheduler/mask_job.h"
#include "scheduler/plan.h"
#include "scheduler/request.h"
#include "scheduler/sequence_constraint.h"

namespace foredraft {

enum class SequenceState { kWaiting, kPrefilling, kDecoding, kSwapped, kEnded };

// A sequence's blocks of one cache group.
struct SequenceBlocks {
  int extent = 0;  // the most it may own while it decodes: constant after Submit
  int limit = 0;   // the most it may own now: more than `extent`, perhaps, until its prompt is committed
  // The sequence's entries of the block table are [first_index, first_index + ids.size()), in position order.
  // An id is 0 where the rows of a long prompt chunk have no memory because nothing reads them later (windows
  // only).
  int first_index = 0;
  std::vector<int32_t> ids;
  std::vector<int32_t> spare;  // windows, while it prefills: for the chunks to come
  int image_count = 0;         // while it is swapped: blocks of the image, from first_index on

  int end_index() const { return first_index + static_cast<int>(ids.size()); }
  int held() const {
    return static_cast<int>(ids.size() + spare.size() - std::count(ids.begin(), ids.end(), kScratchBlock));
  }
};

struct Sequence {
  // Constant after Submit.
  Request request;
  uint64_t arrival_number = 0;
  int32_t priority_class = 0;  // the larger first; 0 for all with ageing
  SteadyTime queue_time;       // then the earlier; the same for all without ageing
  int32_t prompt_len = 0;      // m
  int32_t length_limit = 0;    // the last token's position: m + max_tokens - 1

  SequenceState state = SequenceState::kWaiting;

  uint64_t admission_number = 0;  // its place in the order of first admissions; 0 before

  // Constant from an admission to the next loss of a rank.
  int rank = -1;
  bool swappable = false;  // its extent is reserved in the host store, else in the pool
  bool argmax = false;     // PlainArgmax of its admission
  int32_t reused_len = 0;
  double queue_seconds = 0;
  uint64_t admitted_in = 0;  // plan number

  // While it is on the device.
  int slot = -1;
  // While it is swapped.
  uint64_t image_id = 0;

  // In the order of SchedulerOptions::groups, the history first.
  absl::InlinedVector<SequenceBlocks, 1> groups;

  // Positions of the prompt below prompt_planned are in plans; the first offered_block_count blocks of the
  // history were offered to the prefix index.
  int32_t prompt_planned = 0;
  int offered_block_count = 0;
  uint64_t offered_node = 0;  // prefix index node of the last of these blocks
  bool may_offer = true;      // false once swapped: it then has other blocks than those the prefill filled
  // Windows: the prefixes, by their lengths, whose ends it keeps until it has offered them. Ascending.
  std::vector<int32_t> ends;
  // The history block of the prefix end that its answer has added; scratch if there is none.
  int32_t answer_end = kScratchBlock;

  // Output.
  int32_t length = 0;           // p as of the last Commit; m from the plan of the last prompt chunk on
  int32_t unresolved_rows = 0;  // sum of K_j + 1 over launched, uncommitted decode steps
  int unresolved_steps = 0;     // their count; held steps (scheduler_masks.cc) are in neither

  // SlotResult::confidences of the last committed step.
  std::vector<float> confidences;

  // Constrained sequences only.
  std::unique_ptr<SequenceConstraint> constraint;  // null: it has none
  std::vector<int32_t> drafts;                     // that the device has, as of the last Commit
  int live_plans = 0;                              // launched, uncommitted plans in which it is live
  // Behind the gate, once a plan asks for the masks of its next step, up to the plan that has them.
  std::shared_ptr<MaskJob> mask_job;

  // Two bounds that follow from `groups`, so that most steps need not look at these (RankState::SetBounds):
  // the positions that the block tables of all groups reach, and the most positions for which
  // RankState::Shrink still has a block to release.
  int32_t owned_len = 0;
  int32_t shrinkable_len = -1;

  // Resume (scheduler.h). The first replay_len tokens of output_ids were delivered before the last loss: they
  // are computed again and not delivered again. replay_planned of them are in plans, replay_done committed.
  std::vector<int32_t> output_ids;  // delivered: t_m, t_{m+1}, ...; empty unless keeps_output()
  int32_t replay_len = 0;
  int32_t replay_planned = 0;
  int32_t replay_done = 0;
  int losses = 0;                  // lost ranks that hit a plan with it since its last new token
  int32_t output_len_at_loss = 0;  // output_ids.size() at the last of them

  // Launched, uncommitted plans that name it. The object is not freed before this is 0.
  int plans_in_flight = 0;
  uint64_t last_plan = 0;  // number of the last plan that names it
  uint64_t live_in = 0;    // number of the last plan that gave it the blocks for a decode step

  int32_t length_upper() const { return std::min(length + unresolved_rows, length_limit); }
  // Every unresolved step gives at least one token; a held one is not among them.
  int32_t length_lower() const { return length + unresolved_steps; }

  // The tokens at positions first .. first + count - 1; output_ids has those after the prompt.
  std::vector<int32_t> TokensAt(int32_t first, int32_t count) const {
    std::vector<int32_t> tokens;
    tokens.reserve(count);
    for (int32_t position = first; position < first + count; ++position) {
      tokens.push_back(position < prompt_len ? request.prompt_ids[position]
                                             : output_ids.at(position - prompt_len));
    }
    return tokens;
  }

  bool replays() const { return replay_planned < replay_len; }

  // Whether nothing is left to decode, whatever the unresolved steps emit.
  bool surely_finished() const { return length_lower() >= length_limit; }
};

// Order of requests: the higher priority first, or, with ageing, the earlier time of arrival minus what the
// priority is worth; then the order of Submit.
struct ComesFirst {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->priority_class != b->priority_class) return a->priority_class > b->priority_class;
    if (a->queue_time != b->queue_time) return a->queue_time < b->queue_time;
    return a->arrival_number < b->arrival_number;
  }
};

// Order of admission: sequences that a lost rank interrupted, as they were admitted; then new ones.
struct AdmittedFirst {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->admission_number != b->admission_number) {
      if (a->admission_number == 0 || b->admission_number == 0) return b->admission_number == 0;
      return a->admission_number < b->admission_number;
    }
    return ComesFirst()(a, b);
  }
};

}  // namespace foredraft
