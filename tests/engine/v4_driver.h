#pragma once

// Drives a RankEngine with plans made by hand: sequences side by side, one slot each, whose blocks are mapped
// as late and given back as early as docs/deepseek-v4.md section 10 allows, in every cache group. So a row
// that the engine reads outside of a group's lookback, or writes past what a plan owns, fails a CHECK of the
// kernels or changes tokens.

#include <cstdint>
#include <map>
#include <vector>

#include "engine/rank_engine.h"
#include "scheduler/sampling_params.h"

namespace foredraft {

struct DrivenRequest {
  std::vector<int32_t> prompt;
  int max_tokens = 0;
  SamplingParams sampling;
};

struct DriveSetting {
  std::vector<int> draft_lens = {0};   // K of successive iterations, repeated
  std::vector<int> verify_lens = {0};  // rows per seat for so many drafts, likewise; 0: for all K
  int chunk = 8192;                    // prompt tokens of a sequence and iteration, at most
  int swap_every = 0;                  // decode steps after which a sequence goes to host memory and back
};

// The drafts that the engine had made after `token_count` output tokens.
struct DrivenDrafts {
  int token_count = 0;
  std::vector<int32_t> drafts;
  std::vector<float> confidences;
};

struct DrivenRun {
  std::vector<int32_t> tokens;
  std::vector<DrivenDrafts> drafts;
  int accepted = 0;  // drafts
  int rejected = 0;
};

class V4Driver {
 public:
  explicit V4Driver(RankEngine& engine);

  // One slot per request. May be called again.
  std::vector<DrivenRun> Run(const std::vector<DrivenRequest>& requests, const DriveSetting& setting);

  // Windows that were given back while their sequence ran.
  int64_t blocks_given_back() const { return blocks_given_back_; }
  int swaps() const { return swaps_; }

 private:
  struct Sequence {
    const DrivenRequest* request = nullptr;
    int slot = 0;
    int length = 0;  // committed: prompt tokens computed, then p
    bool live = false;
    bool ended = false;
    int steps = 0;
    std::vector<std::map<int, int32_t>> blocks;  // of each group, by table index

    int prompt_len() const { return static_cast<int>(request->prompt.size()); }
    int limit() const { return prompt_len() + request->max_tokens - 1; }
  };

  // Maps exactly the blocks that positions [first, last] of `group` touch, and unmaps the others.
  void Own(Sequence& sequence, int group, int first, int last, RankPlan& plan);
  // What a plan that begins at `length`, computes up to `end` and may write `drafted` more positions owns.
  void OwnForPlan(Sequence& sequence, int end, int drafted, RankPlan& plan);
  void OwnAfter(Sequence& sequence);
  void AddChunk(Sequence& sequence, const DriveSetting& setting, IterationPlan& plan);
  void SwapOutAndIn(Sequence& sequence);
  IterationPlan PlanOf(std::vector<Sequence>& sequences, const DriveSetting& setting);
  void Take(const SlotResult& slot, const DriveSetting& setting, Sequence& sequence, DrivenRun& run);
  int32_t Take(int group);
  void GiveBack(int group, int32_t block);
  RankResult Carry(const IterationPlan& plan);

  RankEngine& engine_;
  const std::vector<CacheGroup> groups_;
  std::vector<std::vector<int32_t>> free_;  // of each group; the longest free is taken first
  RankPlan pending_;                        // what the next plan brings beside its rows
  size_t iteration_ = 0;
  uint64_t number_ = 0;
  int64_t blocks_given_back_ = 0;
  int swaps_ = 0;
};

}  // namespace foredraft
