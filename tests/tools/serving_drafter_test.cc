// The part of `foredraft validate-mtp` that runs a server's engine: it passes with the drafter that serves
// and fails with one that recycles the wrong hidden state, or drafts behind other noise.

#include "tools/validate_mtp/serving_drafter.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/status_macros.h"
#include "engine/checkpoint/weight_loader.h"
#include "engine/spec/dspark/dspark_drafter.h"
#include "engine/spec/eagle/eagle_drafter.h"
#include "engine/spec/mtp_modules.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

// Eagle with a fault: each recycled forward takes the target's output again instead of the module's own. The
// first draft of a step is right, and so are all tokens.
class RecyclesTarget : public Drafter {
 public:
  explicit RecyclesTarget(const MtpModules& module) : m_(module) {}

  void Prompt(Rank& rank, const ChunkRows& chunks, const RankRows& rank_rows) const override {
    m_.Prompt(rank, chunks, rank_rows);
  }
  void FirstDraft(const Rank& rank, const DraftInput& input, int draft_count) const override {
    Draft(rank, input, std::min(draft_count, 1));
  }
  void Draft(const Rank& rank, const DraftInput& input, int draft_count) const override;

 private:
  const MtpModules m_;
};

void RecyclesTarget::Draft(const Rank& rank, const DraftInput& input, int draft_count) const {
  const Ops& ops = rank.ops();
  Stream& stream = *rank.stream;
  const int rows = input.bucket * (input.draft_len + 1);
  const Matrix<float> last = m_.last_output.first_rows(input.bucket);
  ops.emitted_rows(stream, {.ids = m_.rows.ids,
                            .row_slots = m_.rows.slots,
                            .positions = m_.rows.positions,
                            .last_row = m_.last_row,
                            .outputs = input.outputs,
                            .bucket = input.bucket,
                            .draft_len = input.draft_len,
                            .level = 1});
  m_.Run(rank, input, /*level=*/1, input.target_output, m_.output.first_rows(rows));
  Matrix<const float> from = m_.output.first_rows(rows);
  for (int draft = 1; draft <= draft_count; ++draft) {
    ops.copy_rows(
        stream,
        {.out = last, .x = from, .x_index = draft == 1 ? m_.last_row : nullptr, .rows = input.bucket});
    m_.PickDraft(rank, input, draft, /*level=*/1);
    if (draft == draft_count) break;
    ops.next_draft_rows(stream, {.ids = m_.rows.ids,
                                 .row_slots = m_.rows.slots,
                                 .positions = m_.rows.positions,
                                 .draft_ids = m_.picker.draft_ids(),
                                 .outputs = input.outputs,
                                 .bucket = input.bucket,
                                 .draft_index = draft});
    ops.copy_rows(stream,
                  {.out = last, .x = input.target_output, .x_index = m_.last_row, .rows = input.bucket});
    m_.Run(rank, input, /*level=*/1, last, m_.output.first_rows(input.bucket));
    from = m_.output.first_rows(input.bucket);
  }
}

DrafterKind Faulty() {
  DrafterKind kind = kEagle;
  kind.name = "recycles the target";
  kind.create = [](Device& device, const EngineOptions& options, const ModelConfig& model,
                   const SlotState& slots) -> absl::StatusOr<std::unique_ptr<Drafter>> {
    ASSIGN_OR_RETURN(MtpModules module, MtpModules::Create(device, options, model, slots));
    return std::make_unique<RecyclesTarget>(module);
  };
  return kind;
}

// The boundaries by their names.
std::map<std::string, Boundary> Check(const std::string& dir, const DrafterKind* drafter,
                                      const ServingCheckOptions& options) {
  const ModelConfig config = *ReadModelConfig(dir + "/config.json");
  const std::unique_ptr<Device> device = *CreateDevice("cpu", {.threads = 2});
  const std::unique_ptr<Stream> stream = device->CreateStream();
  const LoadedWeights weights =
      *LoadWeights(dir, config, config.num_nextn_predict_layers, *device, *stream, nullptr);
  std::vector<std::vector<int32_t>> prompts = {{3, 1, 4, 1, 5}, {9}, {}};
  for (int i = 0; i < 40; ++i) prompts.back().push_back(2 * i % config.vocab_size);
  const auto boundaries = CheckServingDrafter(
      *device, config, weights, drafter == nullptr ? DrafterOf(config) : *drafter, prompts, options);
  EXPECT_TRUE(boundaries.ok()) << boundaries.status();
  std::map<std::string, Boundary> by_name;
  if (boundaries.ok()) {
    for (const Boundary& boundary : *boundaries) by_name[boundary.name] = boundary;
  }
  return by_name;
}

constexpr char kV4[] = "tests/golden/checkpoints/deepseek_v4";
constexpr char kAbacus[] = "deploy/models/abacus";

class ServingDrafter : public testing::TestWithParam<const char*> {};

TEST_P(ServingDrafter, AgreesWithTheCommittedTokens) {
  for (const int draft_len : {1, 3}) {
    const auto boundaries = Check(GetParam(), nullptr, {.draft_len = draft_len, .steps = 4});
    ASSERT_EQ(boundaries.size(), 3u);
    for (const auto& [name, boundary] : boundaries) {
      EXPECT_TRUE(boundary.ok()) << name << ": " << boundary.difference;
      EXPECT_EQ(boundary.rows, 2 * 5 + 4) << name;  // the last prompt ends in the second iteration
    }
  }
}

TEST_P(ServingDrafter, FailsWhereTheDrafterRecyclesTheTargetsOutput) {
  const DrafterKind faulty = Faulty();
  const auto boundaries = Check(GetParam(), &faulty, {.draft_len = 3, .steps = 4});
  ASSERT_EQ(boundaries.size(), 3u);
  EXPECT_FALSE(boundaries.at("serving drafts").ok());
  EXPECT_TRUE(boundaries.at("serving acceptance").ok());
  EXPECT_TRUE(boundaries.at("serving tokens").ok());
}

// With one draft nothing is recycled: the double differs from Eagle in its fault alone.
TEST_P(ServingDrafter, PassesTheSameDrafterWhereNothingIsRecycled) {
  const DrafterKind faulty = Faulty();
  for (const auto& [name, boundary] : Check(GetParam(), &faulty, {.draft_len = 1, .steps = 4})) {
    EXPECT_TRUE(boundary.ok()) << name;
  }
}

constexpr char kDSparkModel[] = "tests/golden/checkpoints/deepseek_v4_dspark";

TEST(ServingDSpark, AgreesWithTheCommittedTokens) {
  for (const int draft_len : {1, 5}) {
    const auto boundaries = Check(kDSparkModel, nullptr, {.draft_len = draft_len, .steps = 4});
    ASSERT_EQ(boundaries.size(), 3u);
    for (const auto& [name, boundary] : boundaries) EXPECT_TRUE(boundary.ok()) << name;
  }
}

TEST(ServingDSpark, FailsWhereTheDrafterTakesAnotherNoise) {
  DrafterKind faulty = kDSpark;
  faulty.create = [](Device& device, const EngineOptions& options, const ModelConfig& model,
                     const SlotState& slots) -> absl::StatusOr<std::unique_ptr<Drafter>> {
    ModelConfig other = model;
    other.v4->dspark->noise_token_id = 5;
    return kDSpark.create(device, options, other, slots);
  };
  const auto boundaries = Check(kDSparkModel, &faulty, {.draft_len = 3, .steps = 4});
  ASSERT_EQ(boundaries.size(), 3u);
  EXPECT_FALSE(boundaries.at("serving drafts").ok());
  EXPECT_TRUE(boundaries.at("serving acceptance").ok());
  EXPECT_TRUE(boundaries.at("serving tokens").ok());
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, ServingDrafter, testing::Values(kAbacus, kV4), [](const auto& info) {
  return std::string(info.param == std::string(kAbacus) ? "abacus" : "deepseek_v4");
});

}  // namespace
}  // namespace foredraft
