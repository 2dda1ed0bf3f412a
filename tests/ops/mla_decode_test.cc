#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/ops/attention_reference.h"
#include "tests/ops/decode_rows.h"

namespace foredraft {
namespace {

// Around the boundaries of blocks, tiles and the CPU's splits, and of CUDA's splits.
const std::vector<int> kShort = {3, 31, 32, 62, 63, 64, 65, 127, 128, 190};
const std::vector<int> kLong = {5, 510, 511, 512, 1023, 1025, 1500, 2047, 2048, 3100};

const DecodeRows kShapes[] = {
    {"abacus", 4, 64, 16, 32, 32, 0, kShort},
    {"abacus, module 1", 4, 64, 16, 32, 32, 1, kShort},
    {"R1 slice", 16, 512, 64, 128, 64, 0, kShort},
    {"64 heads of R1", 64, 512, 64, 128, 64, 2, {3, 63, 64, 128}},
    {"two blocks of heads", 20, 256, 32, 64, 16, 0, {4, 64, 100}},
    {"ragged", 9, 37, 6, 11, 5, 3, kShort},
    {"ragged, long keys", 7, 275, 22, 11, 5, 3, kShort},
    {"abacus, long", 4, 64, 16, 32, 64, 0, kLong},
    {"module 3, long", 4, 64, 16, 32, 16, 3, kLong},
};

void CheckHead(const DecodeRows& shape, const KvFixture& kv, int slot, int last, const bf16* q_lat,
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

OpCase DecodeCase(const DecodeRows& shape, const KvFixture& kv, const DecodeQueries& queries,
                  std::optional<KvFormat> format = {}) {
  OpCase op_case;
  op_case.name = shape.name;
  op_case.row_count = shape.row_count();
  op_case.run = [&shape, &kv, &queries, format](OpRig& rig, const std::vector<int>& rows) {
    std::vector<BatchRow> batch;
    for (const int row : rows) {  // an idle row between any two
      batch.push_back({row, row % kv.slot_count(), shape.positions[row]});
      batch.push_back({0, -1, 0});
    }
    const std::vector<Bytes> all = RunBatch(rig, shape, kv, queries, batch, format);
    std::vector<Bytes> outputs;
    for (size_t i = 0; i < all.size(); i += 2) outputs.push_back(all[i]);
    return outputs;
  };
  op_case.check = [&shape, &kv, &queries](int row, const Bytes& output) {
    const std::vector<bf16> values = FromBytes<bf16>(output);
    for (int h = 0; h < shape.heads; ++h) {
      SCOPED_TRACE("row " + std::to_string(row) + ", head " + std::to_string(h));
      const int head = row * shape.heads + h;
      CheckHead(shape, kv, row % kv.slot_count(), shape.positions[row], &queries.q_lat[head * shape.latent],
                &queries.q[head * (shape.nope + shape.rope) + shape.nope], ScaleOf(shape),
                &values[h * shape.latent]);
      if (testing::Test::HasFatalFailure()) return;
    }
  };
  return op_case;
}

void ExpectHolds(const std::vector<DecodeRows>& shapes, DType dtype) {
  for (const DecodeRows& shape : shapes) {
    Noise noise(11);
    const DecodeQueries queries = MakeQueries(noise, shape, shape.row_count());
    const KvFixture kv(noise, 3, shape.cache_len(), shape.tokens_per_block, shape.latent, shape.rope, dtype);
    ExpectOpHolds(DecodeCase(shape, kv, queries));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(MlaDecode, Holds) { ExpectHolds({std::begin(kShapes), std::end(kShapes)}, DType::kBF16); }

const DecodeRows kFp8Shapes[] = {
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
  for (const DecodeRows& shape : kFp8Shapes) {
    Noise noise(19);
    const DecodeQueries queries = MakeQueries(noise, shape, shape.row_count());
    const KvFixture kv(noise, 3, shape.cache_len(), shape.tokens_per_block, shape.latent, shape.rope,
                       DType::kF8E4M3);
    std::vector<int> rows(shape.row_count());
    std::iota(rows.begin(), rows.end(), 0);
    for (const std::string& isa : SupportedIsas()) {
      OpRig fp8({.isa = isa}, RunMode::kEager), bf16({.isa = isa}, RunMode::kEager);
      EXPECT_EQ(DecodeCase(shape, kv, queries).run(fp8, rows),
                DecodeCase(shape, kv, queries, DType::kBF16).run(bf16, rows))
          << shape.name << ", isa " << isa;
    }
  }
}

// Where CUDA's splits become longer. The rows differ, so the blocks of the second one start inside the first.
TEST(MlaDecode, HoldsForLongContexts) {
  const DecodeRows shape = {"long", 4, 32, 16, 32, 64, 1, {16383, 16384, 300}};
  Noise noise(17);
  const DecodeQueries queries = MakeQueries(noise, shape, shape.row_count());
  const KvFixture kv(noise, 2, shape.cache_len(), shape.tokens_per_block, shape.latent, shape.rope);
  const OpCase op_case = DecodeCase(shape, kv, queries);
  OpRig rig({}, RunMode::kEager);
  const std::vector<Bytes> together = op_case.run(rig, {2, 1, 0, 1});
  for (const int row : {0, 1}) {
    OpRig own({}, RunMode::kEager);
    const Bytes alone = op_case.run(own, {row})[0];
    op_case.check(row, alone);
    EXPECT_EQ(together[row == 0 ? 2 : 1], alone) << "row " << row;
  }
}

// Adjacent rows of a sequence share their keys: K + 1 rows in order, and orders that no step has. Few rows
// and many, so that a backend divides the work in different ways.
void ExpectTogetherAsAlone(const DecodeRows& shape, KvFormat format) {
  SCOPED_TRACE(absl::StrCat(shape.name, ", ", KvFormatName(format)));
  struct Case {
    const char* name;
    std::vector<std::vector<int>> sequences;  // positions of adjacent rows
  };
  const Case cases[] = {
      {"across the border of a tile", {{62, 63, 64, 65}, {126, 127, 128, 129}}},
      {"across the border of a split", {{254, 255, 256, 257}}},
      {"far apart", {{1, 2, 300, 1000}, {255, 1023, 1024}}},
      {"equal and descending", {{40, 40, 39, 38, 70}, {200, 130, 20, 70}}},
      {"more rows than drafts make", {{500, 501, 502, 503, 504, 505, 506, 507, 508, 509, 510, 511, 512}}},
      {"many sequences", std::vector<std::vector<int>>(12, {300, 301, 302, 303})},
  };
  Noise noise(19);
  constexpr int kQueries = 7;
  const DecodeQueries queries = MakeQueries(noise, shape, kQueries);
  const KvFixture kv(noise, 3, shape.cache_len(), shape.tokens_per_block, shape.latent, shape.rope);
  for (const Case& c : cases) {
    std::vector<BatchRow> batch;
    for (size_t i = 0; i < c.sequences.size(); ++i) {
      for (const int position : c.sequences[i]) {
        batch.push_back({static_cast<int>(batch.size()) % kQueries, static_cast<int>(i % 3), position});
      }
    }
    for (const std::string& isa : SupportedIsas()) {
      OpRig one({.isa = isa}, RunMode::kEager);
      std::map<std::array<int, 3>, Bytes> known;
      std::vector<Bytes> alone;
      for (const BatchRow& row : batch) {
        Bytes& output = known[{row.query, row.slot, row.position}];
        if (output.empty()) output = RunBatch(one, shape, kv, queries, {row}, format)[0];
        alone.push_back(output);
      }
      for (const int threads : {1, 3}) {
        if (threads > 1 && TestBackend() != "cpu") continue;  // host threads matter only to the CPU
        OpRig rig({.threads = threads, .isa = isa}, RunMode::kEager);
        EXPECT_EQ(RunBatch(rig, shape, kv, queries, batch, format), alone)
            << c.name << ", isa " << isa << ", " << threads << " threads";
      }
    }
  }
}

TEST(MlaDecode, RowsOfASequenceTogetherAreAsAlone) {
  for (const KvFormat format : kDecodeFormats) {
    if (format == KvFormat(DType::kF8E4M3)) continue;  // in order as BF16
    ExpectTogetherAsAlone({"short keys", 5, 48, 16, 32, 16, 1, {1100}}, format);
    ExpectTogetherAsAlone({"long keys", 5, 244, 14, 32, 16, 1, {1100}}, format);
  }
}

void ExpectLaterRowsMayBeNaN(const DecodeRows& shape) {
  SCOPED_TRACE(shape.name);
  Noise noise(13);
  const DecodeQueries queries = MakeQueries(noise, shape, shape.row_count());
  const KvFixture whole(noise, 3, shape.cache_len(), shape.tokens_per_block, shape.latent, shape.rope,
                        DType::kF8E4M3);
  for (int row = 0; row < shape.row_count(); ++row) {
    KvFixture masked = whole;
    masked.Poison(row % 3, shape.positions[row] + 1, shape.cache_len());
    masked.Poison(row % 3, 0, shape.first_position);
    for (const std::string& isa : SupportedIsas()) {
      for (const KvFormat format : kDecodeFormats) {
        OpRig rig({.isa = isa}, RunMode::kEager), other({.isa = isa}, RunMode::kEager);
        EXPECT_EQ(DecodeCase(shape, masked, queries, format).run(rig, {row}),
                  DecodeCase(shape, whole, queries, format).run(other, {row}))
            << "row " << row << ", isa " << isa << ", " << KvFormatName(format);
      }
    }
  }
}

TEST(MlaDecode, RowsPastTheOwnOneMayBeNaN) {
  ExpectLaterRowsMayBeNaN(kShapes[0]);
  ExpectLaterRowsMayBeNaN({"long keys", 4, 256, 16, 32, 32, 0, kShort});
}

}  // namespace
}  // namespace foredraft
