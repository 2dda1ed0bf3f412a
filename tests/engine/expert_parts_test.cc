// A rank whose experts are chosen more often than they have room for runs them in parts, and every row keeps
// the bits that it has on one rank. Inputs rounded to NVFP4 are what the definition makes them.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/comm/solo_communicator.h"
#include "engine/model/mlp.h"
#include "kernels/exp.h"
#include "tests/engine/comm/rank_threads.h"
#include "tests/ops/rounded_row.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

constexpr int kExperts = 16, kTopK = 2, kWidth = 128;
constexpr int kRows = 16;  // of the largest forward, of a rank
constexpr int kStepRows = 4;

// A token names its experts (expert_table).
enum Token : int32_t { kFirstEighth, kHalfFirst, kElsewhere, kTokenCount };
constexpr int32_t kExpertTable[kTokenCount][kTopK] = {{0, 1}, {1, 15}, {10, 13}};
// The pairs of a row that belong to the rank with the first experts, four or two of them.
constexpr int kFirstPairs[kTokenCount] = {2, 1, 0};

ModelConfig SmallConfig() {
  ModelConfig config;
  config.vocab_size = kTokenCount;
  config.hidden_size = kWidth;
  config.moe_intermediate_size = kWidth;
  config.n_routed_experts = kExperts;
  config.num_experts_per_tok = kTopK;
  return config;
}

// Whose scale rounds an expert's inputs.
enum class Inputs { kBf16, kAlike, kOwn };

// The weights of a layer, of all experts.
struct Layer {
  Layer(DType dtype, Inputs rounding, Noise noise)
      : inputs(rounding), router(MakeTestWeight(noise, {kExperts}, kWidth, DType::kBF16, 128, 128)) {
    const int group = Is4Bit(dtype) ? kNvfp4Format.columns : 128;
    for (int e = 0; e < kExperts; ++e) {
      gate_up.push_back(MakeTestWeight(noise, {kWidth, kWidth}, kWidth, dtype, 128, group));
      down.push_back(MakeTestWeight(noise, {kWidth}, kWidth, dtype, 128, group));
      gate_up_scales.push_back(0.0017f * (inputs == Inputs::kOwn ? 1 + 0.3f * static_cast<float>(e) : 1));
      down_scales.push_back(gate_up_scales.back() * 0.7f);
      FoldInto(gate_up.back(), gate_up_scales.back());
      FoldInto(down.back(), down_scales.back());
    }
    shared_gate_up = MakeTestWeight(noise, {kWidth, kWidth}, kWidth, DType::kBF16, 128, 128);
    shared_down = MakeTestWeight(noise, {kWidth}, kWidth, DType::kBF16, 128, 128);
  }

  // As the loader does: the tensor scale has that of the inputs.
  void FoldInto(TestWeight& weight, float input_scale) const {
    if (inputs == Inputs::kBf16) return;
    for (HostWeight& part : weight.parts) part.tensor_scale *= input_scale;
  }

  const Inputs inputs;
  TestWeight router;
  std::vector<TestWeight> gate_up, down;  // their `values` are without input scales
  std::vector<float> gate_up_scales, down_scales;
  TestWeight shared_gate_up, shared_down;
};

// The rows of a tensor group.
struct GroupRows {
  std::vector<int32_t> tokens;  // -1: an idle row
  std::vector<bf16> x;          // [rows, kWidth]
  std::vector<float> hidden;    // [rows, kWidth]
};

GroupRows RowsOfTokens(std::vector<int32_t> tokens, int seed) {
  Noise noise(seed);
  const size_t values = tokens.size() * kWidth;
  return {std::move(tokens), noise.Bf16s(values), noise.Floats(values)};
}

void RouteByTable(const Forward& f, const MoeWeights& w, const ScoredRows& rows) {
  const ExpertActivations& a = f.activations.experts;
  f.ops.route_softplus(f.stream, {.expert_ids = a.expert_ids,
                                  .expert_weights = a.expert_weights,
                                  .logits = rows.logits,
                                  .bias = nullptr,
                                  .expert_table = w.expert_table,
                                  .ids = rows.ids,
                                  .index = rows.index,
                                  .vocab_size = f.config.vocab_size,
                                  .top_k = f.config.num_experts_per_tok,
                                  .routed_scaling_factor = 1.5f});
}

// One rank with its part of the layer.
class MoeRank {
 public:
  MoeRank(Device& device, Communicator& comm, const Layer& layer, const RankLayout& layout)
      : device_(device), comm_(comm), stream_(device.CreateStream()) {
    shard_ = {.layout = layout, .rank = comm.rank()};
    const int first = shard_.experts().first_expert(kExperts);
    const int count = shard_.experts().expert_count_here(kExperts);
    const auto pack = [&](const std::vector<TestWeight>& experts) {
      return *device_.PackWeights(
          count, [&](int i) -> absl::StatusOr<std::vector<HostWeight>> { return experts[first + i].parts; });
    };
    weights_.router = *device.PackWeight(layer.router.parts);
    weights_.expert_gate_up = pack(layer.gate_up);
    weights_.expert_down = pack(layer.down);
    const auto scales_of = [&](const std::vector<float>& all) {
      if (layer.inputs == Inputs::kBf16) return InputScales{};
      return InputScales{Put(std::vector<float>(&all[first], all.data() + first + count)),
                         layer.inputs == Inputs::kAlike};
    };
    weights_.gate_up_inputs = scales_of(layer.gate_up_scales);
    weights_.down_inputs = scales_of(layer.down_scales);
    weights_.expert_table = Put(std::vector<int32_t>(kExpertTable[0], kExpertTable[0] + kTokenCount * kTopK));
    // Ranks of a tensor group would have parts of it.
    if (layout.attention_tp == 1) {
      weights_.shared = {*device.PackWeight(layer.shared_gate_up.parts),
                         *device.PackWeight(layer.shared_down.parts)};
    }
    ActivationAllocator allocate(device);
    ActivationSize size = {.rows = kRows, .decode_rows = kStepRows, .mlp_width = kWidth};
    AddExperts(device, weights_, size);
    AllocateActivations(allocate, config_, shard_, size, activations_);
    CHECK(allocate.status().ok());
  }

  void LeaveOutShared() { weights_.shared = {}; }
  const ExpertActivations& experts() const { return activations_.experts; }

  // Its group's hidden rows after the layer. rank_rows: as in Batch.
  std::vector<float> Run(const GroupRows& rows, const RankRows* rank_rows) {
    const int count = static_cast<int>(rows.tokens.size());
    std::vector<int32_t> slots(count);
    for (int row = 0; row < count; ++row) slots[row] = rows.tokens[row] < 0 ? -1 : row;
    const Batch batch = {
        .index = {.slots = Put(slots), .positions = Put(std::vector<int32_t>(count)), .rows = count},
        .ids = Put(rows.tokens),
        .rank_rows = rank_rows};
    const Matrix<float> hidden = Dense(Put(rows.hidden), count, kWidth);
    InputRows x = activations_.normed.first_rows(count);
    device_.CopyToDevice(*stream_, x.as_bf16.data, rows.x.data(), rows.x.size() * sizeof(bf16));
    x.as_f8 = {};  // the products make the same codes of BF16 rows
    const Forward f = {.ops = device_.ops(),
                       .stream = *stream_,
                       .comm = comm_,
                       .shard = shard_,
                       .config = config_,
                       .activations = activations_,
                       .batch = batch};
    MixtureOfExperts(f, weights_, {.route = RouteByTable}, x, hidden);
    EXPECT_TRUE(comm_.Await(*stream_).ok());
    return Get(hidden.data, rows.hidden.size());
  }

  // An intermediate result of the last forward.
  template <class T>
  std::vector<T> Rows(const Matrix<T>& x, int rows) {
    CHECK_EQ(x.stride, x.cols);
    return Get(x.data, static_cast<size_t>(rows) * x.cols);
  }
  template <class T>
  std::vector<T> Values(const T* x, int count) {
    return Get(x, count);
  }

  // The parts with rows in the last forward.
  int PartsWithRows(int part_count) {
    const std::vector<int32_t> borders = Get(experts().part_borders, part_count + 1);
    int parts = 0;
    for (int i = 0; i < part_count; ++i) parts += borders[i + 1] > borders[i] ? 1 : 0;
    return parts;
  }

 private:
  template <class T>
  T* Put(const std::vector<T>& values) {
    T* const memory = *device_.AllocateArray<T>(std::max<size_t>(values.size(), 1));
    device_.CopyToDevice(*stream_, memory, values.data(), values.size() * sizeof(T));
    return memory;
  }
  template <class T>
  std::vector<T> Get(const T* memory, size_t count) {
    std::vector<T> values(count);
    device_.CopyToHost(*stream_, values.data(), memory, count * sizeof(T));
    stream_->Synchronize();
    return values;
  }

  Device& device_;
  Communicator& comm_;
  const std::unique_ptr<Stream> stream_;
  const ModelConfig config_ = SmallConfig();
  ModelShard shard_;
  MoeWeights weights_;
  Activations activations_;
};

// All groups' rows, of which the rank with the first experts has `pairs` pairs in the order that `seed`
// gives.
std::vector<GroupRows> RowsWithPairs(int groups, int rows, int pairs, int seed) {
  std::vector<int32_t> tokens(groups * rows, kElsewhere);
  for (int32_t& token : tokens) {
    if (pairs >= 2) token = kFirstEighth;
    if (pairs == 1) token = kHalfFirst;
    pairs -= kFirstPairs[token];
  }
  CHECK_EQ(pairs, 0);
  std::shuffle(tokens.begin(), tokens.end(), std::mt19937(seed));
  std::vector<GroupRows> split;
  for (int group = 0; group < groups; ++group) {
    std::vector<int32_t> own(&tokens[group * rows], &tokens[group * rows] + rows);
    split.push_back(RowsOfTokens(std::move(own), seed + group));
  }
  return split;
}

RankRows CountsOf(const std::vector<GroupRows>& groups) {
  RankRows rows;
  for (size_t i = 0; i < groups.size(); ++i)
    rows[static_cast<int>(i)] = static_cast<int32_t>(groups[i].tokens.size());
  return rows;
}

struct Case {
  const char* name;
  RankLayout layout;
  DType dtype;
  Inputs inputs = Inputs::kBf16;
};

const Case kCases[] = {
    {"eight groups, BF16 partial sums", RankLayout::DataParallel(8), DType::kBF16},
    {"four groups, FP8 experts", RankLayout::DataParallel(4), DType::kF8E4M3},
    {"a tensor group", RankLayout::TensorParallel(8), DType::kBF16},
    {"groups of several ranks", {.attention_dp = 2, .attention_tp = 2, .moe_ep = 4}, DType::kF8E4M3},
    {"four groups, inputs in NVFP4", RankLayout::DataParallel(4), DType::kF4E2M1, Inputs::kAlike},
    {"four groups, inputs by own scales", RankLayout::DataParallel(4), DType::kF4E2M1, Inputs::kOwn},
};

class ExpertPartsTest : public ::testing::TestWithParam<Case> {
 protected:
  ExpertPartsTest()
      : layout_(GetParam().layout),
        layer_(GetParam().dtype, GetParam().inputs, Noise(7)),
        parts_(ConnectRanks(layout_.world_size(), std::chrono::seconds(60))),
        alone_device_(*CreateDevice(TestBackend(), {.threads = 1})),
        solo_(alone_device_->ops()) {
    ranks_.resize(parts_.size());
    ForEachRank(layout_.world_size(), [&](int rank) {
      ranks_[rank] = std::make_unique<MoeRank>(*parts_[rank].device, *parts_[rank].comm, layer_, layout_);
    });
    alone_ = std::make_unique<MoeRank>(*alone_device_, solo_, layer_, RankLayout{});
    if (layout_.attention_tp > 1) alone_->LeaveOutShared();
  }

  // Runs the groups' rows on all ranks, and on one.
  void ExpectTheBitsOfOneRank(const std::vector<GroupRows>& groups, bool step) {
    const RankRows rank_rows = CountsOf(groups);
    std::vector<std::vector<float>> results(ranks_.size());
    ForEachRank(layout_.world_size(), [&](int rank) {
      results[rank] = ranks_[rank]->Run(groups[layout_.group(rank)], step ? nullptr : &rank_rows);
    });
    for (int group = 0; group < layout_.attention_dp; ++group) {
      const RankRows own_rows = RankRows::Uniform(1, rank_rows[group]);
      const std::vector<float> expected = alone_->Run(groups[group], &own_rows);
      for (int place = 0; place < layout_.attention_tp; ++place) {
        const std::vector<float>& result = results[group * layout_.attention_tp + place];
        EXPECT_EQ(BytesOf(result.data(), result.size()), BytesOf(expected.data(), expected.size()))
            << "group " << group << ", place " << place;
      }
    }
  }

  const RankLayout layout_;
  const Layer layer_;
  std::vector<RankParts> parts_;
  const std::unique_ptr<Device> alone_device_;
  SoloCommunicator solo_;
  std::vector<std::unique_ptr<MoeRank>> ranks_;
  std::unique_ptr<MoeRank> alone_;
};

// What the first rank's experts are chosen for, from nothing to all: parts end where its room does.
TEST_P(ExpertPartsTest, GiveEveryRowTheBitsOfOneRank) {
  const int groups = layout_.attention_dp, all = groups * kRows * kTopK;
  const ExpertActivations& first = ranks_[0]->experts();
  const int room = first.part_pairs, part_count = first.PartCount(all);
  EXPECT_EQ(room, 2 * all / layout_.moe_ep) << "twice an even spread";
  EXPECT_EQ(part_count, layout_.moe_ep / 2);
  for (const int pairs : {0, room - 1, room, room + 1, 2 * room - 1, 2 * room, all}) {
    if (pairs > all) continue;
    SCOPED_TRACE(absl::StrCat(pairs, " pairs, room for ", room));
    ExpectTheBitsOfOneRank(RowsWithPairs(groups, kRows, pairs, 100 + pairs), /*step=*/false);
    // A part ends with the row that fills it, whose last pair may be one more.
    const int parts = ranks_[0]->PartsWithRows(part_count), largest = first.out.rows;
    EXPECT_GE(parts, (pairs + largest - 1) / largest);
    EXPECT_LE(parts, pairs / room + 1);
  }
}

// Ranks without rows, and rows that are idle.
TEST_P(ExpertPartsTest, TakeUnequalAndIdleRows) {
  const int groups = layout_.attention_dp;
  std::vector<GroupRows> rows = RowsWithPairs(groups, kRows, groups * kRows * kTopK, 5);
  for (int32_t row = 0; row < kRows; row += 3) rows[0].tokens[row] = -1;
  if (groups > 1) rows.back() = RowsOfTokens({}, 9);
  if (groups > 2) rows[1] = RowsOfTokens({kFirstEighth, kElsewhere, kHalfFirst}, 10);
  ExpectTheBitsOfOneRank(rows, /*step=*/false);
}

// A captured step has one part, wherever its rows go.
TEST_P(ExpertPartsTest, AStepHasRoomForAllOfItsPairs) {
  const int groups = layout_.attention_dp, pairs = groups * kStepRows * kTopK;
  EXPECT_EQ(ranks_[0]->experts().PartCount(pairs), 1);
  ExpectTheBitsOfOneRank(RowsWithPairs(groups, kStepRows, pairs, 6), /*step=*/true);
}

// ---- what rounded inputs give ----

// Every product and every rounding of one layer against the definition, from the inputs that the layer itself
// gave them: a code is a step of its input, so errors must not be carried from product to product.
class RoundedInputs : public ::testing::TestWithParam<Inputs> {
 protected:
  // out, of one grouped row: the products with `weight` of the rounded inputs. Sums of kWidth products in
  // FP32, in any order, are off by at most kWidth roundings of the sum of magnitudes; three more roundings
  // are of the factor of the tensor.
  static void ExpectProducts(const TestWeight& weight, float input_scale, const std::vector<bf16>& rounded,
                             const float* out) {
    std::vector<double> inputs;
    for (const bf16 x : rounded) inputs.push_back(double{ToFloat(x)} * input_scale);
    for (int n = 0; n < weight.n; ++n) {
      const DotReference dot = ReferenceDot(weight, n, inputs);
      ASSERT_NEAR(out[n], dot.sum, dot.magnitude * (kWidth + 3) * kF32Roundoff) << "output " << n;
    }
  }
};

TEST_P(RoundedInputs, AreTheDefinitions) {
  const Layer layer(DType::kF4E2M1, GetParam(), Noise(8));
  const auto device = *CreateDevice(TestBackend(), {.threads = 1});
  SoloCommunicator solo(device->ops());
  MoeRank rank(*device, solo, layer, RankLayout{});
  const std::vector<int32_t> tokens = {kFirstEighth, kElsewhere, -1, kHalfFirst, kElsewhere};
  GroupRows rows = RowsOfTokens(tokens, 12);
  for (int i = 0; i < 16; ++i) rows.x[kWidth + 32 + i] = bf16{0};  // a group of zeros
  const RankRows own = RankRows::Uniform(1, static_cast<int32_t>(tokens.size()));
  rank.Run(rows, &own);
  const ExpertActivations& a = rank.experts();
  const auto offsets = rank.Values(a.expert_offsets, kExperts + 1);
  const int pairs = offsets.back();
  ASSERT_EQ(pairs, 8);
  const auto sources = rank.Values(a.grouped_rows, pairs);
  const auto gate_up = rank.Rows(a.gate_up, pairs);
  const auto activated = rank.Rows(a.activated.as_bf16, pairs);
  const auto out = rank.Rows(a.out, pairs);
  for (int expert = 0; expert < kExperts; ++expert) {
    for (int g = offsets[expert]; g < offsets[expert + 1]; ++g) {
      SCOPED_TRACE(absl::StrCat("expert ", expert, ", row ", sources[g]));
      const auto x = rows.x.begin() + int64_t{sources[g]} * kWidth;
      const RoundedRow input({x, x + kWidth}, layer.gate_up_scales[expert]);
      const float* const gate = &gate_up[size_t(g) * 2 * kWidth];
      ExpectProducts(layer.gate_up[expert], layer.gate_up_scales[expert], input.Values(), gate);
      std::vector<bf16> product(kWidth);
      for (int i = 0; i < kWidth; ++i) {
        product[i] = ToBf16(GatedSilu(gate[i], gate[kWidth + i], std::numeric_limits<float>::infinity()));
      }
      const std::vector<bf16> expected = RoundedRow(product, layer.down_scales[expert]).Values();
      for (int i = 0; i < kWidth; ++i) {
        ASSERT_EQ(activated[size_t(g) * kWidth + i].bits, expected[i].bits) << "activated " << i;
      }
      ExpectProducts(layer.down[expert], layer.down_scales[expert], expected, &out[size_t(g) * kWidth]);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scales, RoundedInputs, ::testing::Values(Inputs::kAlike, Inputs::kOwn),
                         [](const auto& info) { return info.param == Inputs::kAlike ? "Alike" : "Own"; });

INSTANTIATE_TEST_SUITE_P(Layouts, ExpertPartsTest, ::testing::ValuesIn(kCases),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           std::string name = info.param.name;
                           std::erase_if(name, [](char c) { return !absl::ascii_isalnum(c); });
                           return name;
                         });

}  // namespace
}  // namespace foredraft
