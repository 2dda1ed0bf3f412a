#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "tests/ops/attention_reference.h"
#include "tests/ops/kv_fixture.h"
#include "tests/ops/op_harness.h"

namespace foredraft {
namespace {

struct Shape {
  const char* name;
  int heads;
  int latent;
  int rope;
  int nope;
  int tokens_per_block;
  int first_position;
  std::vector<int> positions;  // of the rows: the last position that each attends

  int row_count() const { return static_cast<int>(positions.size()); }
  int cache_len() const { return *std::max_element(positions.begin(), positions.end()) + 10; }
};

// Around the boundaries of blocks, tiles and the CPU's splits, and of CUDA's splits.
const std::vector<int> kShort = {3, 31, 32, 62, 63, 64, 65, 127, 128, 190};
const std::vector<int> kLong = {5, 510, 511, 512, 1023, 1025, 1500, 2047, 2048, 3100};

const Shape kShapes[] = {
    {"abacus", 4, 64, 16, 32, 32, 0, kShort},
    {"abacus, module 1", 4, 64, 16, 32, 32, 1, kShort},
    {"R1 slice", 16, 512, 64, 128, 64, 0, kShort},
    {"64 heads of R1", 64, 512, 64, 128, 64, 2, {3, 63, 64, 128}},
    {"two blocks of heads", 20, 256, 32, 64, 16, 0, {4, 64, 100}},
    {"ragged", 9, 37, 6, 11, 5, 3, kShort},
    {"abacus, long", 4, 64, 16, 32, 64, 0, kLong},
    {"module 3, long", 4, 64, 16, 32, 16, 3, kLong},
};

void CheckHead(const Shape& shape, const KvFixture& kv, int slot, int last, const bf16* q_lat,
               const bf16* q_pe, double scale, const bf16* out) {
  const auto row = [&](int t) { return kv.Row(slot, shape.first_position + t); };
  const HeadReference reference = ReferenceAttention(
      Joined(Floats(q_lat, shape.latent), Floats(q_pe, shape.rope)), scale, last + 1 - shape.first_position,
      [&](int t) { return Floats(row(t), shape.latent + shape.rope); },
      [&](int t) { return Floats(row(t), shape.latent); });
  for (int i = 0; i < shape.latent; ++i) {
    ASSERT_NEAR(ToFloat(out[i]), reference.out[i], reference.tolerance[i]) << "element " << i;
  }
}

// dtype: of the layer; by default the fixture's.
OpCase DecodeCase(const Shape& shape, const KvFixture& kv, const std::vector<bf16>& q_lat,
                  const std::vector<bf16>& q, std::optional<DType> dtype = {}) {
  const int head_dim = shape.nope + shape.rope;
  const int lat_width = shape.heads * shape.latent;
  const int q_width = shape.heads * head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  OpCase op_case;
  op_case.name = shape.name;
  op_case.row_count = shape.row_count();
  op_case.run = [=, &shape, &kv, &q_lat, &q](OpRig& rig, const std::vector<int>& rows) {
    // An idle row between any two: its slot is -1, its queries are NaN.
    const int count = 2 * static_cast<int>(rows.size());
    std::vector<bf16> lat_in(count * lat_width, bf16{0x7fc0}), q_in(count * q_width, bf16{0x7fc0});
    std::vector<int32_t> slots(count, -1), positions(count, 0);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(&q_lat[rows[i] * lat_width], lat_width, &lat_in[2 * i * lat_width]);
      std::copy_n(&q[rows[i] * q_width], q_width, &q_in[2 * i * q_width]);
      slots[2 * i] = rows[i] % kv.slot_count();
      positions[2 * i] = shape.positions[rows[i]];
    }
    bf16* out = rig.Poisoned<bf16>(count * lat_width);
    const MlaDecodeParams params = {.out = Dense(out, count, lat_width),
                                    .q_lat = Dense<const bf16>(rig.Put(lat_in), count, lat_width),
                                    .q = Dense<const bf16>(rig.Put(q_in), count, q_width),
                                    .layer = kv.Put(rig, dtype.value_or(kv.dtype())),
                                    .index = {rig.Put(slots), rig.Put(positions), count},
                                    .head_count = shape.heads,
                                    .head_dim = head_dim,
                                    .first_position = shape.first_position,
                                    .scale = scale};
    rig.Run([&] { rig.ops().mla_decode(rig.stream(), params); });
    const std::vector<bf16> values = rig.Get(out, count * lat_width);
    std::vector<Bytes> outputs;
    for (size_t i = 0; i < rows.size(); ++i) {
      outputs.push_back(BytesOf(&values[2 * i * lat_width], lat_width));
    }
    return outputs;
  };
  op_case.check = [=, &shape, &kv, &q_lat, &q](int row, const Bytes& output) {
    const std::vector<bf16> values = FromBytes<bf16>(output);
    for (int h = 0; h < shape.heads; ++h) {
      SCOPED_TRACE("row " + std::to_string(row) + ", head " + std::to_string(h));
      CheckHead(shape, kv, row % kv.slot_count(), shape.positions[row],
                &q_lat[row * lat_width + h * shape.latent], &q[row * q_width + h * head_dim + shape.nope],
                scale, &values[h * shape.latent]);
      if (testing::Test::HasFatalFailure()) return;
    }
  };
  return op_case;
}

void ExpectHolds(const std::vector<Shape>& shapes, DType dtype) {
  for (const Shape& shape : shapes) {
    Noise noise(11);
    const std::vector<bf16> q_lat = noise.Bf16s(shape.row_count() * shape.heads * shape.latent);
    const std::vector<bf16> q = noise.Bf16s(shape.row_count() * shape.heads * (shape.nope + shape.rope));
    const KvFixture kv(noise, 3, shape.cache_len(), shape.tokens_per_block, shape.latent, shape.rope, dtype);
    ExpectOpHolds(DecodeCase(shape, kv, q_lat, q));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(MlaDecode, Holds) { ExpectHolds({std::begin(kShapes), std::end(kShapes)}, DType::kBF16); }

const Shape kFp8Shapes[] = {
    {"abacus, module 1", 4, 64, 16, 32, 32, 1, {3, 64, 127}},
    {"64 heads of R1", 64, 512, 64, 128, 64, 2, {3, 128}},
    {"R1 slice, small blocks", 16, 512, 64, 128, 8, 0, {5, 64}},
    {"three groups", 5, 300, 8, 24, 16, 0, {4, 100}},
    {"ragged", 9, 37, 6, 11, 5, 3, {3, 63, 65}},
    {"abacus, long", 4, 64, 16, 32, 64, 0, {510, 1025}},
};

TEST(MlaDecode, HoldsForFp8) { ExpectHolds({std::begin(kFp8Shapes), std::end(kFp8Shapes)}, DType::kF8E4M3); }

// The FP8 cache and the BF16 cache of the same values.
TEST(MlaDecode, Fp8RowsGiveTheBitsOfTheirBf16Values) {
  for (const Shape& shape : kFp8Shapes) {
    Noise noise(19);
    const std::vector<bf16> q_lat = noise.Bf16s(shape.row_count() * shape.heads * shape.latent);
    const std::vector<bf16> q = noise.Bf16s(shape.row_count() * shape.heads * (shape.nope + shape.rope));
    const KvFixture kv(noise, 3, shape.cache_len(), shape.tokens_per_block, shape.latent, shape.rope,
                       DType::kF8E4M3);
    std::vector<int> rows(shape.row_count());
    std::iota(rows.begin(), rows.end(), 0);
    for (const std::string& isa : SupportedIsas()) {
      OpRig fp8({.isa = isa}, RunMode::kEager), bf16({.isa = isa}, RunMode::kEager);
      EXPECT_EQ(DecodeCase(shape, kv, q_lat, q).run(fp8, rows),
                DecodeCase(shape, kv, q_lat, q, DType::kBF16).run(bf16, rows))
          << shape.name << ", isa " << isa;
    }
  }
}

// Where CUDA's splits become longer. The rows differ, so the blocks of the second one start inside the first.
TEST(MlaDecode, HoldsForLongContexts) {
  const Shape shape = {"long", 4, 32, 16, 32, 64, 1, {16383, 16384, 300}};
  Noise noise(17);
  const std::vector<bf16> q_lat = noise.Bf16s(shape.row_count() * shape.heads * shape.latent);
  const std::vector<bf16> q = noise.Bf16s(shape.row_count() * shape.heads * (shape.nope + shape.rope));
  const KvFixture kv(noise, 2, shape.cache_len(), shape.tokens_per_block, shape.latent, shape.rope);
  const OpCase op_case = DecodeCase(shape, kv, q_lat, q);
  OpRig rig({}, RunMode::kEager);
  const std::vector<Bytes> together = op_case.run(rig, {2, 1, 0, 1});
  for (const int row : {0, 1}) {
    OpRig own({}, RunMode::kEager);
    const Bytes alone = op_case.run(own, {row})[0];
    op_case.check(row, alone);
    EXPECT_EQ(together[row == 0 ? 2 : 1], alone) << "row " << row;
  }
}

TEST(MlaDecode, RowsPastTheOwnOneMayBeNaN) {
  const Shape& shape = kShapes[0];
  Noise noise(13);
  const std::vector<bf16> q_lat = noise.Bf16s(shape.row_count() * shape.heads * shape.latent);
  const std::vector<bf16> q = noise.Bf16s(shape.row_count() * shape.heads * (shape.nope + shape.rope));
  const KvFixture whole(noise, 3, shape.cache_len(), shape.tokens_per_block, shape.latent, shape.rope,
                        DType::kF8E4M3);
  for (int row = 0; row < shape.row_count(); ++row) {
    KvFixture masked = whole;
    masked.Poison(row % 3, shape.positions[row] + 1, shape.cache_len());
    masked.Poison(row % 3, 0, shape.first_position);
    for (const std::string& isa : SupportedIsas()) {
      for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
        OpRig rig({.isa = isa}, RunMode::kEager), other({.isa = isa}, RunMode::kEager);
        EXPECT_EQ(DecodeCase(shape, masked, q_lat, q, dtype).run(rig, {row}),
                  DecodeCase(shape, whole, q_lat, q, dtype).run(other, {row}))
            << "row " << row << ", isa " << isa << ", " << DTypeName(dtype);
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
