// CUDA's mla_decode, besides tests/ops/mla_decode_test.cc: the division into work items does not change bits.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/attention/mla_decode.h"
#include "tests/ops/kv_fixture.h"
#include "tests/ops/op_rig.h"

namespace foredraft {
namespace {

struct Shape {
  const char* name;
  int heads, latent, rope, nope;
  std::vector<int> positions;  // of the rows; -1: an idle row
  int tokens_per_block = 64;
  int top_k = 0;  // positions of a list; 0: no lists
};

// [rows, top_k]: some of each row's positions from 1 on, ascending order, then -1.
std::vector<int32_t> Lists(const Shape& shape) {
  std::vector<int32_t> lists;
  Noise noise(31);
  for (const int position : shape.positions) {
    const size_t end = lists.size() + shape.top_k;
    const int left_out = static_cast<int>(lists.size() / shape.top_k % 3);  // at the end of the list
    for (int at = 1; at <= position && lists.size() + left_out < end; ++at) {
      const bool needed = position - at < static_cast<int>(end - lists.size());
      if (needed || noise.Int(0, 9) < 6) lists.push_back(at);
    }
    lists.resize(end, -1);
  }
  return lists;
}

// Queries and a cache for the rows of a shape, two rows per sequence.
struct Inputs {
  explicit Inputs(const Shape& s, DType dtype = DType::kBF16)
      : shape(s),
        row_count(static_cast<int>(s.positions.size())),
        noise(29),
        q_lat(noise.Bf16s(row_count * s.heads * s.latent)),
        q(noise.Bf16s(row_count * s.heads * (s.nope + s.rope))),
        kv(noise, (row_count + 1) / 2, *std::max_element(s.positions.begin(), s.positions.end()) + 1,
           s.tokens_per_block, s.latent, s.rope, dtype) {}

  // Heads [first_head, first_head + head_count) of all rows.
  std::vector<bf16> Run(int first_head, int head_count, const cuda::DecodeChoice& choice) const {
    return Run(first_head, head_count, choice, kv.dtype());
  }
  // Runs over the same values in a cache of `format`.
  std::vector<bf16> Run(int first_head, int head_count, const cuda::DecodeChoice& choice,
                        KvFormat format) const {
    OpRig rig({}, RunMode::kEager);
    const int head_dim = shape.nope + shape.rope;
    std::vector<int32_t> slots(row_count), positions(row_count);
    for (int r = 0; r < row_count; ++r) {
      slots[r] = shape.positions[r] < 0 ? -1 : r / 2;
      positions[r] = std::max(0, shape.positions[r]);
    }
    const int out_width = head_count * shape.latent;
    bf16* out = rig.Poisoned<bf16>(row_count * out_width);
    const MlaDecodeParams params = {
        .out = Dense(out, row_count, out_width),
        .q_lat = Dense<const bf16>(rig.Put(q_lat), row_count, shape.heads * shape.latent)
                     .columns(first_head * shape.latent, out_width),
        .q = Dense<const bf16>(rig.Put(q), row_count, shape.heads * head_dim)
                 .columns(first_head * head_dim, head_count * head_dim),
        .layer = kv.Put(rig, format),
        .index = {rig.Put(slots), rig.Put(positions), row_count},
        .head_count = head_count,
        .head_dim = head_dim,
        .first_position = 1,
        .selected = shape.top_k > 0 ? rig.Put(Lists(shape)) : nullptr,
        .selected_count = shape.top_k,
        .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
    cuda::MlaDecodeBy(choice, rig.stream(), params);
    rig.stream().Synchronize();
    return rig.Get(out, row_count * out_width);
  }

  // Makes all numbers whole, -2 to 2: codes are exact, and so are sums of their products, which fit 13 bits.
  void Round() {
    for (bf16& x : q_lat) x = Rounded(x);
    for (bf16& x : q) x = Rounded(x);
    for (int slot = 0; slot < kv.slot_count(); ++slot) {
      for (int t = 0; t <= *std::max_element(shape.positions.begin(), shape.positions.end()); ++t) {
        for (int c = 0; c < kv.width(); ++c) kv.Row(slot, t)[c] = Rounded(kv.Row(slot, t)[c]);
      }
    }
  }
  static bf16 Rounded(bf16 x) { return ToBf16(std::clamp(std::nearbyint(ToFloat(x)), -2.0f, 2.0f)); }

  Shape shape;
  int row_count;
  Noise noise;
  std::vector<bf16> q_lat, q;
  KvFixture kv;
};

constexpr int64_t kAmple = 1000;  // a block for every split and tile of heads

// With one block every row is merged as it is computed; with a block per split, from partial results.
TEST(MlaDecodeItems, HowManyBlocksRunDoesNotShow) {
  const Shape shapes[] = {
      {"two blocks of heads", 20, 64, 16, 32, {5, 1500, -1, 3100, 2047, 1030, 2048}},
      {"odd elements", 3, 37, 5, 11, {1024, 2100}},
      {"R1", 64, 512, 64, 128, {600, -1, 1100}},
      {"R1, two blocks of heads", 128, 512, 64, 128, {1025}},
      {"R1's widths, a part of a block's heads", 20, 512, 64, 128, {600, -1, 1100}},
  };
  for (const Shape& s : shapes) {
    const Inputs inputs(s);
    const std::vector<bf16> ample = inputs.Run(0, s.heads, {.blocks = kAmple, .hopper = false});
    for (const bool hopper : {false, true}) {
      if (hopper && s.latent != 512) continue;
      for (const int64_t blocks : {1, 2, 3, 4, 7, 1000}) {
        const std::vector<bf16> out = inputs.Run(0, s.heads, {blocks, hopper});
        EXPECT_EQ(BytesOf(out.data(), out.size()), BytesOf(ample.data(), ample.size()))
            << s.name << ", " << blocks << " blocks, hopper " << hopper;
      }
    }
  }
}

TEST(MlaDecodeItems, HowManyHeadsABlockHasDoesNotShow) {
  const Inputs inputs({"R1", 64, 512, 64, 128, {1, 63, 64, 200, 1024}});
  const int width = 16 * 512;
  const std::vector<bf16> together = inputs.Run(0, 64, {.blocks = kAmple, .hopper = false});
  for (int tile = 0; tile < 4; ++tile) {
    for (const bool hopper : {false, true}) {
      const std::vector<bf16> apart = inputs.Run(tile * 16, 16, {kAmple, hopper});
      for (int r = 0; r < inputs.row_count; ++r) {
        EXPECT_EQ(BytesOf(&apart[r * width], width), BytesOf(&together[(r * 4 + tile) * width], width))
            << "heads from " << tile * 16 << ", row " << r << ", hopper " << hopper;
      }
    }
  }
}

// Over rows of any page size: FP8 rows do not come by TMA.
TEST(MlaDecodeItems, HopperGivesTheSameBitsForFp8) {
  for (const int tokens_per_block : {64, 20}) {
    const Inputs inputs({"R1", 64, 512, 64, 128, {1, -1, 65, 520}, tokens_per_block}, DType::kF8E4M3);
    const std::vector<bf16> expected = inputs.Run(0, 64, {.blocks = kAmple, .hopper = false}, DType::kBF16);
    for (const bool hopper : {false, true}) {
      for (const int64_t blocks : {int64_t{2}, kAmple}) {
        const std::vector<bf16> out = inputs.Run(0, 64, {blocks, hopper});
        EXPECT_EQ(BytesOf(out.data(), out.size()), BytesOf(expected.data(), expected.size()))
            << "pages of " << tokens_per_block << ", hopper " << hopper << ", " << blocks << " blocks";
      }
    }
  }
}

// Two tiles of heads that bring each other's keys, and the same ones apart: items of one and of several
// splits, with an odd number of tiles; two pairs of a row; smaller pages.
void ExpectPairsDoNotShow(const std::vector<Shape>& shapes, DType dtype) {
  for (const Shape& s : shapes) {
    const Inputs inputs(s, dtype);
    const std::vector<bf16> apart = inputs.Run(0, s.heads, {.blocks = kAmple, .pairs = false});
    for (const int64_t blocks : {int64_t{2}, kAmple}) {
      const std::vector<bf16> out = inputs.Run(0, s.heads, {.blocks = blocks});
      EXPECT_EQ(BytesOf(out.data(), out.size()), BytesOf(apart.data(), apart.size()))
          << s.name << ", " << blocks << " blocks";
    }
  }
}

TEST(MlaDecodeItems, PairsOfBlocksDoNotShow) {
  ExpectPairsDoNotShow({{"two tiles of heads", 100, 512, 64, 128, {1, -1, 65, 600}},
                        {"four tiles of heads", 256, 512, 64, 128, {130}, 16}},
                       DType::kBF16);
}

TEST(MlaDecodeItems, PairsOfBlocksDoNotShowForFp8) {
  ExpectPairsDoNotShow({{"two tiles of heads", 100, 512, 64, 128, {1, -1, 190}, 20}}, DType::kF8E4M3);
}

// ---- FP8 products ----

constexpr KvFormat kProducts(DType::kF8E4M3, /*fp8_products_of=*/true);

// Names the first element that differs: the outputs are too long to be printed.
void ExpectSameBits(const std::vector<bf16>& out, const std::vector<bf16>& expected) {
  ASSERT_EQ(out.size(), expected.size());
  size_t count = 0, first = 0;
  for (size_t i = out.size(); i-- > 0;) {
    if (out[i].bits == expected[i].bits) continue;
    first = i;
    ++count;
  }
  EXPECT_EQ(count, 0u) << "from element " << first << " on: " << ToFloat(out[first]) << ", expected "
                       << ToFloat(expected[first]);
}

// Items of one and of several splits, with an odd number of tiles; tiles of heads alone and in pairs.
TEST(MlaDecodeItems, HowManyBlocksRunDoesNotShowForFp8Products) {
  const Inputs inputs({"R1, two tiles of heads", 80, 512, 64, 128, {1, -1, 600}}, DType::kF8E4M3);
  const std::vector<bf16> apart = inputs.Run(0, 80, {.blocks = kAmple, .pairs = false}, kProducts);
  for (const int64_t blocks : {int64_t{2}, kAmple}) {
    SCOPED_TRACE(blocks);
    ExpectSameBits(inputs.Run(0, 80, {.blocks = blocks}, kProducts), apart);
  }
}

TEST(MlaDecodeItems, HowManyHeadsABlockHasDoesNotShowForFp8Products) {
  const Inputs inputs({"R1", 64, 512, 64, 128, {63, 64, 200}, 16}, DType::kF8E4M3);
  const int width = 16 * 512;
  const std::vector<bf16> together = inputs.Run(0, 64, {.blocks = kAmple}, kProducts);
  for (int tile = 0; tile < 4; ++tile) {
    const std::vector<bf16> apart = inputs.Run(tile * 16, 16, {.blocks = kAmple}, kProducts);
    for (int r = 0; r < inputs.row_count; ++r) {
      EXPECT_EQ(BytesOf(&apart[r * width], width), BytesOf(&together[(r * 4 + tile) * width], width))
          << "heads from " << tile * 16 << ", row " << r;
    }
  }
}

// Rows come one by one where a launch has lists, even if none of its rows needs one.
TEST(MlaDecodeItems, HowRowsComeDoesNotShowForFp8Products) {
  const Shape by_pages = {"R1", 64, 512, 64, 128, {1, -1, 65, 520}};
  Shape by_rows = by_pages;
  by_rows.top_k = 520;
  const std::vector<bf16> expected =
      Inputs(by_pages, DType::kF8E4M3).Run(0, 64, {.blocks = kAmple}, kProducts);
  for (const int64_t blocks : {int64_t{1}, kAmple}) {
    SCOPED_TRACE(blocks);
    ExpectSameBits(Inputs(by_rows, DType::kF8E4M3).Run(0, 64, {.blocks = blocks}, kProducts), expected);
  }
}

// Exact scores, so the weights' codes are the same. What is left: sums of 64 products of weights and values,
// each cut to 13 bits below the largest, are off by sqrt(66) * 2^-13 of it on average, which is 2.8e-3 of an
// output of random signs; and both outputs are rounded to BF16, by up to 2^-9.
TEST(MlaDecodeItems, HopperGivesTheGenericKernelsNumbersForFp8Products) {
  const Shape shapes[] = {{"pages", 64, 512, 64, 128, {1, -1, 65, 1100}, 32},
                          {"pages that TMA cannot load", 20, 512, 64, 128, {30, 150}, 20},
                          {"lists", 64, 512, 64, 128, {3, 600, 519}, 64, 150}};
  for (const Shape& s : shapes) {
    Inputs inputs(s);
    inputs.Round();
    const std::vector<bf16> out = inputs.Run(0, s.heads, {.blocks = kAmple}, kProducts);
    const std::vector<bf16> generic = inputs.Run(0, s.heads, {.blocks = kAmple, .hopper = false}, kProducts);
    const int width = s.heads * s.latent;
    for (int r = 0; r < inputs.row_count; ++r) {
      if (s.positions[r] < 0) continue;
      double error = 0, size = 0;
      for (int i = r * width; i < (r + 1) * width; ++i) {
        error += std::pow(ToFloat(out[i]) - ToFloat(generic[i]), 2);
        size += std::pow(ToFloat(generic[i]), 2);
      }
      EXPECT_GT(size, 0);
      EXPECT_LE(std::sqrt(error / size), 2.8e-3 + 2 * 0x1p-9) << s.name << ", row " << r;
    }
  }
}

// Rows that attend a list, and in the same launch rows that see no more than a list has; several splits.
TEST(MlaDecodeItems, HopperGivesTheSameBitsForLists) {
  for (const int tokens_per_block : {64, 20}) {
    const Inputs inputs({"R1", 64, 512, 64, 128, {3, 600, -1, 520, 519, 1300}, tokens_per_block, 519});
    const std::vector<bf16> expected = inputs.Run(0, 64, {.blocks = kAmple, .hopper = false});
    for (const int64_t blocks : {int64_t{2}, kAmple}) {
      const std::vector<bf16> out = inputs.Run(0, 64, {blocks, /*hopper=*/true});
      EXPECT_EQ(BytesOf(out.data(), out.size()), BytesOf(expected.data(), expected.size()))
          << "pages of " << tokens_per_block << ", " << blocks << " blocks";
    }
  }
}

// On a device this also shows that wgmma and mma.sync add in the same order.
TEST(MlaDecodeItems, HopperGivesTheSameBits) {
  for (const int tokens_per_block : {64, 32, 16, 128}) {
    const Inputs inputs(
        {"R1", 128, 512, 64, 128, {1, 31, 62, -1, 63, 64, 65, 130, 1023, 1056}, tokens_per_block});
    const std::vector<bf16> out = inputs.Run(0, 128, {.blocks = kAmple, .hopper = true});
    const std::vector<bf16> expected = inputs.Run(0, 128, {.blocks = kAmple, .hopper = false});
    for (int r = 0; r < inputs.row_count; ++r) {
      const int width = 128 * 512;
      EXPECT_EQ(BytesOf(&out[r * width], width), BytesOf(&expected[r * width], width))
          << "blocks of " << tokens_per_block << ", row " << r;
    }
  }
}

}  // namespace
}  // namespace foredraft
