// What backend cpu promises of attention beyond tests of every backend: a row is untouched by NaN in
// positions that only other rows of its tile attend, and a long row has the same bits for any number of
// threads.

#include <string>
#include <vector>

#include "tests/ops/kv_fixture.h"
#include "tests/ops/op_rig.h"

namespace foredraft {
namespace {

constexpr int kHeads = 5, kLatent = 48, kRope = 16, kNope = 32, kValue = 24;
constexpr bf16 kNan = {0x7fc0};

// [rows.size(), kHeads * kLatent]; query r is row r % kQueries.
constexpr int kQueries = 4;
std::vector<bf16> Decode(OpRig& rig, const KvFixture& kv, const std::vector<bf16>& q_lat,
                         const std::vector<bf16>& q, int first_query, const std::vector<int32_t>& positions) {
  const int rows = static_cast<int>(positions.size());
  bf16* const out = rig.Poisoned<bf16>(rows * kHeads * kLatent);
  const int lat_width = kHeads * kLatent, q_width = kHeads * (kNope + kRope);
  const MlaDecodeParams params = {
      .out = Dense(out, rows, lat_width),
      .q_lat = Dense<const bf16>(rig.Put(q_lat), kQueries, lat_width).row_range(first_query, rows),
      .q = Dense<const bf16>(rig.Put(q), kQueries, q_width).row_range(first_query, rows),
      .layer = kv.Put(rig),
      .index = {rig.Put(std::vector<int32_t>(rows, 0)), rig.Put(positions), rows},
      .head_count = kHeads,
      .head_dim = kNope + kRope,
      .first_position = 0,
      .scale = 0.1f};
  rig.Run([&] { rig.ops().mla_decode(rig.stream(), params); });
  return rig.Get(out, rows * lat_width);
}

// NaN at a later row's own position, for even and odd numbers of positions in the last tile.
TEST(CpuAttention, NanOfALaterDecodeRowStaysThere) {
  Noise noise(5);
  const std::vector<bf16> q_lat = noise.Bf16s(kQueries * kHeads * kLatent);
  const std::vector<bf16> q = noise.Bf16s(kQueries * kHeads * (kNope + kRope));
  const KvFixture whole(noise, 1, 400, 32, kLatent, kRope);
  for (const int first : {0, 1, 62, 63, 64, 254, 255, 300, 301}) {
    const std::vector<int32_t> positions = {first, first + 1, first + 2, first + 3};
    for (const std::string& isa : SupportedIsas()) {
      OpRig rig({.threads = 3, .isa = isa}, RunMode::kEager);
      for (int row = 0; row < kQueries; ++row) {
        KvFixture masked = whole;
        masked.Poison(0, first + row + 1, 400);
        const std::vector<bf16> out = Decode(rig, masked, q_lat, q, 0, positions);
        const std::vector<bf16> alone = Decode(rig, whole, q_lat, q, row, {first + row});
        const size_t width = kHeads * kLatent;
        EXPECT_EQ(BytesOf(&out[row * width], width), BytesOf(alone.data(), width))
            << "row " << row << " from position " << first << ", isa " << isa;
      }
    }
  }
}

TEST(CpuAttention, NanOfALaterPromptRowStaysThere) {
  constexpr int kRows = 140, kWidth = kHeads * kValue;
  Noise noise(6);
  const std::vector<bf16> q = noise.Bf16s(kRows * kHeads * (kNope + kRope));
  const std::vector<bf16> kv = noise.Bf16s(kRows * kHeads * (kNope + kValue));
  const std::vector<bf16> k_pe = noise.Bf16s(kRows * kRope);
  for (const std::string& isa : SupportedIsas()) {
    OpRig rig({.threads = 3, .isa = isa}, RunMode::kEager);
    const auto prefill = [&](int nan_from) {
      std::vector<bf16> masked_kv = kv, masked_k_pe = k_pe;
      std::fill(masked_kv.begin() + nan_from * kHeads * (kNope + kValue), masked_kv.end(), kNan);
      std::fill(masked_k_pe.begin() + nan_from * kRope, masked_k_pe.end(), kNan);
      bf16* const out = rig.Poisoned<bf16>(kRows * kWidth);
      const MlaPrefillParams params = {
          .out = Dense(out, kRows, kWidth),
          .q = Dense<const bf16>(rig.Put(q), kRows, kHeads * (kNope + kRope)),
          .kv = Dense<const bf16>(rig.Put(masked_kv), kRows, kHeads * (kNope + kValue)),
          .k_pe = Dense<const bf16>(rig.Put(masked_k_pe), kRows, kRope),
          .chunk_first = 0,
          .first_position = 0,
          .segment_first = 0,
          .head_count = kHeads,
          .nope_dim = kNope,
          .rope_dim = kRope,
          .value_dim = kValue,
          .scale = 0.1f};
      rig.Run([&] { rig.ops().mla_prefill(rig.stream(), params); });
      return rig.Get(out, kRows * kWidth);
    };
    const std::vector<bf16> whole = prefill(kRows);
    for (const int nan_from : {1, 2, 7, 30, 63, 64, 65, 100, 139}) {
      EXPECT_EQ(BytesOf(prefill(nan_from).data(), nan_from * kWidth),
                BytesOf(whole.data(), nan_from * kWidth))
          << "NaN from row " << nan_from << " on, isa " << isa;
    }
  }
}

// Compares 1 thread, which takes the splits one after another, with up to more threads than there are splits.
void ExpectThreadsLeaveNoTrace(const KvFixture& kv, const std::vector<bf16>& q_lat,
                               const std::vector<bf16>& q) {
  for (const int first : {300, 511, 512, 2100, 4990}) {
    const std::vector<int32_t> positions = {first, first + 1, first + 2};
    for (const std::string& isa : SupportedIsas()) {
      OpRig one({.threads = 1, .isa = isa}, RunMode::kEager);
      const std::vector<bf16> alone = Decode(one, kv, q_lat, q, 0, positions);
      for (const int threads : {2, 5, 24}) {
        OpRig rig({.threads = threads, .isa = isa}, RunMode::kEager);
        const std::vector<bf16> shared = Decode(rig, kv, q_lat, q, 0, positions);
        EXPECT_EQ(BytesOf(shared.data(), shared.size()), BytesOf(alone.data(), alone.size()))
            << "position " << first << ", " << threads << " threads, isa " << isa;
      }
    }
  }
}

TEST(CpuAttention, ThreadsShareALongRowWithoutATrace) {
  Noise noise(7);
  const std::vector<bf16> q_lat = noise.Bf16s(kQueries * kHeads * kLatent);
  const std::vector<bf16> q = noise.Bf16s(kQueries * kHeads * (kNope + kRope));
  const KvFixture kv(noise, 1, 5000, 32, kLatent, kRope);
  ExpectThreadsLeaveNoTrace(kv, q_lat, q);
}

// Large values that cancel: sums of splits in another order would differ in the bits that are left. The
// weights are equal, as the queries are zero.
TEST(CpuAttention, SplitsAreAddedInOrder) {
  Noise noise(8);
  KvFixture kv(noise, 1, 5000, 32, kLatent, kRope);
  for (int position = 0; position < 4096; ++position) {
    const int range = position / 256 % 4;
    if (range != 1 && range != 3) continue;
    const bf16* from = kv.Row(0, position - (range == 3 ? 512 : 0));
    for (int i = 0; i < kLatent; ++i) {
      kv.Row(0, position)[i] = ToBf16(range == 1 ? ToFloat(from[i]) * 4096.0f : -ToFloat(from[i]));
    }
  }
  ExpectThreadsLeaveNoTrace(kv, std::vector<bf16>(kQueries * kHeads * kLatent),
                            std::vector<bf16>(kQueries * kHeads * (kNope + kRope)));
}

}  // namespace
}  // namespace foredraft
