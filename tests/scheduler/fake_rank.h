#pragma once

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
// The hashes of generated tokens have their request's seed in them, so that no two sequences write the same.
//
// Every cache group has both rows of a position. A step at p reads all of them below p in the history, and
// those from p - lookback on in a window; a prompt chunk that begins at p, too. A row whose table entry is 0
// is lost.
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

// Added to the documented bounds to show that they are tight.
struct FakeRankExcess {
  int written = 0;    // positions that a step writes
  int live_rows = 0;  // MTP rows that must survive
  int lookback = 0;   // of windows: positions that a step, or a prompt chunk, reads
};

struct FakeRankOptions {
  int rank = 0;
  SchedulerOptions scheduler;  // of the scheduler that makes the plans
  bool vanilla = false;        // recent rows reach back to P - Kmax
  FakeRankExcess excess;
  // The token at a position; null: ScriptedToken.
  std::function<int32_t(uint64_t seed, int position)> token_of;
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
    bool read_only = false;  // full of rows that others may read
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
    std::vector<int> first_index;            // [groups]
    std::vector<std::vector<Block>> blocks;  // [groups]
  };
  struct Entries {  // of a table: [first, end)
    int first = 0;
    int end = 0;
  };

  void Fault(const std::string& text);
  void TakeOut(const RankPlan& plan);
  void TakeIn(const RankPlan& plan);
  void ApplyDeltas(const RankPlan& plan);
  void CheckBoundaries(const RankPlan& plan);
  void Prefill(const PrefillChunk& chunk);
  int32_t TokenAt(const SlotAdmission& admission, int position) override;
  int AcceptedDrafts(const Slot& slot, int verified) override;
  void MaskFault(const std::string& text) override { Fault(text); }
  void PromptEnded(int slot_index, int32_t first_token) override;
  void Given(int slot_index, const std::vector<int32_t>& token_ids) override;
  void StepBegins(int slot_index) override;
  void StepEnds(int slot_index, int first_position, const IterationPlan& plan, SlotResult* result) override;
  void WriteStep(int slot_index, int first_position, int draft_len);
  void FreezeGenerated(int slot_index, int first_position);
  int CountRelaxed(Sequence* sequence, int first_position, const AcceptanceRule& acceptance,
                   bool ends_in_draft);
  void Append(Sequence* sequence, int32_t token);
  const CacheGroupShape& shape(int group) const { return options_.scheduler.groups[group]; }
  int group_count() const { return static_cast<int>(options_.scheduler.groups.size()); }
  // The first position of `group` that a forward at `position` reads.
  int FirstRead(int group, int position) const;
  Block* BlockAt(int group, int slot_index, int position);
  const Row& ReadRow(int group, int slot_index, int position);
  // Null where the row is lost, which is a fault unless `may_be_lost`.
  Row* WriteRow(int group, int slot_index, int position, bool may_be_lost = false);
  void WritePrompt(int group, const PrefillChunk& chunk);

  const FakeRankOptions options_;
  const std::function<const std::vector<int32_t>&(uint64_t)> prompt_of_;
  std::vector<std::vector<Block>> blocks_;                 // [groups]
  std::vector<Sequence> sequences_;                        // [slots]
  std::vector<std::vector<std::vector<int32_t>>> tables_;  // [groups][slots][blocks of max_seq_len + 2 Kmax]
  std::map<uint64_t, Image> images_;
  // Frames of the host store that an image takes: those of its blocks, and of its slot state.
  int64_t HostFrames(const Image& image) const;
  int64_t image_frames_ = 0;
  std::vector<std::vector<Entries>> kept_;  // [groups][slots]: this plan maps them to blocks with contents
  std::vector<std::string> faults_;
  uint64_t number_ = 0;
  int largest_live_cap_ = 0;
  std::map<uint64_t, int> relaxed_drafts_;  // by seed
};

}  // namespace foredraft
