#ifndef FOREDRAFT_TESTS_SCHEDULER_FAKE_RANK_H_
#define FOREDRAFT_TESTS_SCHEDULER_FAKE_RANK_H_

// A stub rank with a KV memory in which every row says which tokens it was computed from. It executes plans
// in device order and checks each access.
//
// Tokens are a pure function of (seed, position); how many drafts a step accepts is scripted by (seed,
// position, K), so that schedules differ in lengths but never in tokens. Row contents:
// clang-format off
//   target row s   the hash of tokens 0..s of its sequence
//   MTP row s      the same where s <= P; for P < s < P + Kmax a tag of (sequence, step) that the next step
//                  must find again (accepted drafts' rows are not rewritten: docs/speculation.md section 1.6)
//   0              poison: what a block holds when it is handed out
// clang-format on
//
// The drafts that only relaxation accepts, and the seconds of a step, are scripted too.
//
// The first violations are collected as text in `faults`.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "scheduler/plan.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/stub_rank.h"

namespace foredraft {

// The token at `position` of the request with this seed, for positions past its prompt.
int32_t ScriptedToken(uint64_t seed, int position);

struct FakeRankOptions {
  int rank = 0;
  SchedulerOptions scheduler;  // of the scheduler that makes the plans
  bool vanilla = false;        // MTP windows reach back to P - Kmax
  // Added to the documented bounds to show that they are tight: positions that a step writes, and MTP rows
  // that must survive.
  int extra_reach = 0;
  int extra_live = 0;
};

class FakeRank : public StubRank {
 public:
  // `prompt_of` finds a request's prompt by its seed.
  FakeRank(const FakeRankOptions& options,
           std::function<const std::vector<int32_t>&(uint64_t seed)> prompt_of);

  absl::Status Launch(const IterationPlan& plan) override;

  const std::vector<std::string>& faults() const { return faults_; }
  // True when no slot, table entry or image is left.
  bool IsBare() const;

  // The largest draft_cap among the live slots of the last plan; 0 if there were none.
  int largest_live_cap() const { return largest_live_cap_; }

  // Drafts of the request with this seed that only relaxation accepted; 0 if this rank never ran it.
  int relaxed_drafts(uint64_t seed) const;

 private:
  struct Row {
    uint64_t target = 0;
    uint64_t mtp = 0;
  };
  struct Block {
    std::vector<Row> rows;   // [tokens_per_block]
    uint64_t boundary = 0;   // the outputs kept for reuse: the hash of the tokens up to the block's end
    bool read_only = false;  // full of prompt rows that others may read
    int map_count = 0;       // table entries of all slots that name it
  };
  struct Sequence {
    bool active = false;
    SlotAdmission admission;
    std::vector<int32_t> tokens;   // t_0..t_length
    std::vector<uint64_t> hashes;  // of tokens 0..s
    int prefilled = 0;             // prompt positions in the cache
    bool prompt_ended = false;
    bool step_is_given = false;       // the step in hand emits given tokens
    Phase phase = Phase::kAnswer;     // after the last token
    std::vector<uint64_t> live_rows;  // tags of the MTP rows p + 1 .. that must survive
  };
  struct Image {
    Sequence sequence;
    std::vector<Block> blocks;
  };

  void Fault(const std::string& text);
  void TakeOut(const RankPlan& plan);
  void TakeIn(const RankPlan& plan);
  void ApplyDeltas(const RankPlan& plan);
  void Prefill(const PrefillChunk& chunk);
  int32_t TokenAt(const SlotAdmission& admission, int position) override;
  int AcceptedDrafts(const Slot& slot, int verified) override;
  void PromptEnded(int slot_index, int32_t first_token) override;
  void Given(int slot_index, const std::vector<int32_t>& token_ids) override;
  void StepBegins(int slot_index) override;
  void StepEnds(int slot_index, int first_position, const IterationPlan& plan, SlotResult* result) override;
  void WriteStep(int slot_index, int first_position, int draft_len);
  int CountRelaxed(Sequence* sequence, int first_position, const AcceptanceRule& acceptance);
  void Append(Sequence* sequence, int32_t token);
  Row* ReadRow(int slot_index, int position);
  Row* WriteRow(int slot_index, int position);

  const FakeRankOptions options_;
  const std::function<const std::vector<int32_t>&(uint64_t)> prompt_of_;
  std::vector<Block> blocks_;
  std::vector<Sequence> sequences_;           // [slots]
  std::vector<std::vector<int32_t>> tables_;  // [slots][blocks of max_seq_len + 2 Kmax]
  std::map<uint64_t, Image> images_;
  // Of the host store: its blocks, and those of its slot state.
  int64_t HostBlocks(const Image& image) const {
    return static_cast<int64_t>(image.blocks.size()) + options_.scheduler.host_image_blocks;
  }
  int64_t image_blocks_ = 0;
  std::vector<int> kept_entries_;  // [slots]: leading entries that this plan maps to blocks with contents
  std::vector<std::string> faults_;
  uint64_t number_ = 0;
  int largest_live_cap_ = 0;
  std::map<uint64_t, int> relaxed_drafts_;  // by seed
};

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_SCHEDULER_FAKE_RANK_H_
