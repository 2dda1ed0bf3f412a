// How many bytes of experts' input rows cross the ranks: the step's own exchanges, submitted to a device
// without memory. Whether the tokens stay the same is shown where ranks compute: ranks_same_tokens_test, and
// on backend cuda tests/cuda_on_host/ranks_on_host_test.cc.

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/decode_step.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model_weights.h"
#include "engine/rank.h"
#include "engine/spec/drafter_kind.h"
#include "engine/spec/eagle/eagle_drafter.h"
#include "kernels/devices/sizing_device.h"
#include "nlohmann/json.hpp"
#include "tests/engine/engine_harness.h"

namespace foredraft {
namespace {

constexpr int kRanks = 8;
constexpr int kSeats = 4;

// Notes what a rank sends.
class NotingCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return kRanks; }
  void AllGather(Stream&, const AllGatherParams& params) override {
    ++gathers;
    row_bytes += params.parts[0].row_bytes;
    sent_bytes += params.parts[0].row_bytes * params.rows[0];
  }
  void AllToAll(Stream&, const AllToAllParams&) override {}
  absl::Status Await(Stream&) override { return absl::OkStatus(); }
  absl::Status AllReduce(std::span<int64_t>, Reduction) override { return absl::OkStatus(); }
  absl::Status Broadcast(std::span<std::byte>, int) override { return absl::OkStatus(); }
  absl::Status Barrier() override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}
  absl::Status status() const override { return absl::OkStatus(); }

  int gathers = 0;
  int64_t row_bytes = 0;   // of a row, summed over the gathers
  int64_t sent_bytes = 0;  // of all rows
};

// R1's shape, with weights in `format`.
ModelConfig R1In(const char* format) {
  std::ifstream file("deploy/configs/r1-shape-61x256.json");
  nlohmann::json config = nlohmann::json::parse(file);
  config.erase("quantization_config");
  if (std::string(format) == "fp8") {
    config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  } else if (std::string(format).starts_with("nvfp4")) {
    config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  }
  const std::string path = absl::StrCat(::testing::TempDir(), "/exchange_bytes_", format, ".json");
  std::ofstream(path) << config.dump();
  auto read = ReadModelConfig(path);
  CHECK(read.ok()) << read.status().ToString();
  read->nvfp4_inputs = std::string(format).ends_with("inputs too");
  return *std::move(read);
}

// What rank 0 sends in a decode step with three drafts.
NotingCommunicator StepOf(const ModelConfig& config, SizedBackend backend) {
  EngineOptions options;
  options.layout = RankLayout::DataParallel(kRanks);
  options.max_batch_size = kSeats;
  options.max_num_tokens = 64;
  options.max_seq_len = 256;
  UseDrafter(&kEagle, 3, config, options);
  options.batch_sizes = {kSeats};
  Rank rank;
  rank.device = std::make_unique<SizingDevice>(backend);
  auto noting = std::make_unique<NotingCommunicator>();
  const NotingCommunicator& noted = *noting;
  rank.comm = std::move(noting);
  auto weights = AllocateDummyWeights(config, 1, *rank.device, {.layout = options.layout});
  CHECK(weights.ok()) << weights.status().ToString();
  CHECK(rank.Allocate(options, config, *std::move(weights)).ok());
  CHECK(rank.AllocateCache(options, /*history_blocks=*/1, /*poison=*/false).ok());
  DecodeStep(rank, StepsOf(options.graph_sizes(), options.max_draft_len, options.cuts_drafts).back());
  return noted;
}

TEST(ExchangeBytes, RowsOfExpertsCrossAsTheirProductsReadThem) {
  const struct {
    const char* format;
    SizedBackend backend;
    int64_t target, module;  // bytes of a row, in the target's layers and in the module's
  } cases[] = {
      {"fp8", SizedBackend::kCuda, 7392, 7392},
      {"nvfp4", SizedBackend::kCuda, 14336, 14336},
      {"nvfp4, inputs too", SizedBackend::kCuda, 4032, 14336},  // 0.28125; the module is in BF16
      {"nvfp4, inputs too", SizedBackend::kCpu, 4032, 14336},
      {"bf16", SizedBackend::kCuda, 14336, 14336},
      {"fp8", SizedBackend::kCpu, 14336, 14336},  // products of FP8 weights read BF16 rows there
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.format);
    const NotingCommunicator step = StepOf(R1In(c.format), c.backend);
    // 58 layers with experts; the module runs once for each draft.
    EXPECT_EQ(step.gathers, 58 + 3);
    EXPECT_EQ(step.row_bytes, 58 * c.target + 3 * c.module);
    // Four rows of every seat in the target and in the module's first forward, one in the other two.
    EXPECT_EQ(step.sent_bytes, kSeats * (58 * 4 * c.target + (4 + 2) * c.module));
  }
}

}  // namespace
}  // namespace foredraft
