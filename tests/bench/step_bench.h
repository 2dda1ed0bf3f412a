#ifndef FOREDRAFT_TESTS_BENCH_STEP_BENCH_H_
#define FOREDRAFT_TESTS_BENCH_STEP_BENCH_H_

// One engine and the plans that drive it step by step, for programs that time steps: sequences brought to a
// context, decode steps of any K, drafts accepted at the lengths published for R1. A second Start
// repeats the tokens, so the same steps can be timed and counted.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/rank_engine.h"
#include "tests/bench/counting_device.h"

namespace foredraft {

inline constexpr float kAcceptedLength[] = {1.0f, 1.92f, 2.4f, 2.82f};  // by K

struct StepBenchOptions {
  int context = 4096;            // positions attended at the start; rounded up to whole blocks
  int max_rows = 128;            // sequences
  std::vector<int> batch_sizes;  // the last is max_rows
  int max_draft_len = 3;         // 0: no module
  int tokens_per_block = 64;
  int max_num_tokens = 128;  // of a prefill
  int max_steps = 64;        // of a sequence, from one Start to the next
  bool graphs = true;
};

class StepBench {
 public:
  // `weights` may belong to another device of the same backend, which must outlive this object. This engine
  // is rank 0; `others` connects it to further ranks, whose plans are empty.
  StepBench(const StepBenchOptions& options, const ModelConfig& config, std::unique_ptr<Device> device,
            ModelWeights weights, std::unique_ptr<Communicator> others = nullptr);

  // Computes the context of the first `sequences` sequences (0: of all) from random prompts, as many at once
  // as max_num_tokens allows. Without this call, the caches hold zeros. Returns the seconds of each forward.
  std::vector<double> Prefill(int sequences = 0);

  // Brings `rows` sequences to the context, ready for a decode step; they stay live until the next call.
  void Start(int rows, int draft_len);

  IterationPlan Step(int draft_len);
  // Submits one decode step and waits for it.
  RankResult Run(int draft_len);
  RankResult Finish();

  RankEngine& engine() { return *engine_; }
  int context() const { return context_; }

 private:
  std::vector<int32_t> BlocksOf(int slot) const;

  const int ranks_;
  const int context_;
  int blocks_per_slot_ = 0;
  int length_limit_ = 0;
  int vocab_size_ = 0;
  int live_ = 0;
  uint64_t number_ = 0;
  std::unique_ptr<RankEngine> engine_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_STEP_BENCH_H_
