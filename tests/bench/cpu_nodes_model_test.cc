#include "tests/bench/cpu_nodes_model.h"

#include "gtest/gtest.h"

namespace foredraft {
namespace {

CpuMachine Machine(int nodes, int threads_of_node) {
  return {.name = "test",
          .nodes = nodes,
          .threads_of_node = threads_of_node,
          .node_rate = 100e9,
          .core_rate = 10e9,
          .line_seconds = 100e-9,
          .far_line_seconds = 300e-9,
          .small_op_seconds = 1e-6};
}

DecodeStep OneWeight(int64_t stripes, double stripe_bytes) {
  return {.jobs = {{.name = "w", .calls = 1, .stripes = stripes, .stripe_bytes = stripe_bytes}}};
}

double WithoutBarriers(const PredictedStep& step) { return step.seconds - step.barrier_seconds; }

TEST(CpuNodesModel, ReadsAtTheRateOfTheNodeOrOfItsThreads) {
  // 64 stripes of 1 MB: 20 threads could take 200 GB/s and get 100, 5 threads take 50.
  EXPECT_NEAR(WithoutBarriers(PredictStep(OneWeight(40, 1e6), Machine(1, 20))), 40e6 / 100e9, 1e-9);
  EXPECT_NEAR(WithoutBarriers(PredictStep(OneWeight(40, 1e6), Machine(1, 5))), 40e6 / 50e9, 1e-9);
  EXPECT_NEAR(WithoutBarriers(PredictStep(OneWeight(40, 1e6), Machine(2, 20))), 20e6 / 100e9, 1e-9);
}

TEST(CpuNodesModel, AStripeIsReadByOneThread) {
  const PredictedStep step = PredictStep(OneWeight(21, 1e6), Machine(1, 20));
  EXPECT_NEAR(WithoutBarriers(step), 20e6 / 100e9 + 1e6 / 10e9, 1e-9);
  EXPECT_NEAR(step.uneven_seconds, 1e6 / 10e9, 1e-9);
  EXPECT_EQ(step.least_thread_bytes, 1e6);
  EXPECT_EQ(step.most_thread_bytes, 2e6);
}

TEST(CpuNodesModel, EveryWeightIsCutOverTheNodes) {
  // 3 stripes of each of 8 weights: 8 on one node, 16 on the other.
  DecodeStep step = OneWeight(3, 1e6);
  step.jobs[0].weights = 8;
  EXPECT_NEAR(WithoutBarriers(PredictStep(step, Machine(2, 8))), 2 * 1e6 / 10e9, 1e-9);
}

TEST(CpuNodesModel, BarriersGrowWithGroups) {
  // One group of 4: a line to publish, 4 to learn of the job, 4 to count it done, 1 to see that.
  EXPECT_NEAR(BarrierSeconds(Machine(1, 4)), 10 * 100e-9, 1e-12);
  // Four groups of 16 on two nodes.
  EXPECT_NEAR(BarrierSeconds(Machine(2, 32)), 8 * 300e-9 + 32 * 100e-9, 1e-12);
  EXPECT_GT(FlatBarrierSeconds(Machine(2, 64)), 3 * BarrierSeconds(Machine(2, 64)));
}

// 37 billion active parameters, of which the head, kv_b and router have two bytes, the others 0.5625. The
// embedding is not read.
TEST(CpuNodesModel, HasTheBytesOfR1) {
  const PredictedStep step = PredictStep(R1Int4Step(0), Machine(1, 32));
  double elements = 0;
  for (const StepJob& job : R1Int4Step(0).jobs) {
    const bool bf16 = job.name == "head" || job.name == "router" || job.name.starts_with("w_u");
    elements += job.bytes() / (bf16 ? 2.0 : 0.5625);
  }
  EXPECT_NEAR(elements, 36.6e9, 0.1e9);
  EXPECT_NEAR(step.bytes, 23.55e9, 0.1e9);
  EXPECT_NEAR(PredictStep(R1Int4Step(4096), Machine(1, 32)).bytes - step.bytes, 61 * 4096 * 1152.0, 1);
}

}  // namespace
}  // namespace foredraft
