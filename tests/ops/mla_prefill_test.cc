#include <cmath>

#include "tests/ops/attention_reference.h"
#include "tests/ops/op_rig.h"

namespace foredraft {
namespace {

struct Shape {
  const char* name;
  int heads, nope, rope, value;
  int first_position;
  int length;  // positions first_position .. length - 1 have rows
};

const Shape kShapes[] = {
    {"abacus", 4, 32, 16, 32, 0, 150},    {"abacus, module 1", 4, 32, 16, 32, 1, 150},
    {"R1 slice", 2, 128, 64, 128, 0, 70}, {"ragged", 3, 11, 6, 19, 2, 131},
    {"wide heads", 2, 64, 32, 96, 0, 67},
};

struct Inputs {
  std::vector<bf16> q;     // [length, H * head_dim], row = position
  std::vector<bf16> kv;    // [length - first_position, H * (nope + value)]
  std::vector<bf16> k_pe;  // [length - first_position, rope]
};

Inputs MakeInputs(const Shape& s) {
  Noise noise(61);
  const int rows = s.length - s.first_position;
  return {noise.Bf16s(s.length * s.heads * (s.nope + s.rope)),
          noise.Bf16s(rows * s.heads * (s.nope + s.value)), noise.Bf16s(rows * s.rope)};
}

float ScaleOf(const Shape& s) { return 1.0f / std::sqrt(static_cast<float>(s.nope + s.rope)); }

constexpr int kOneSegment = 1024;  // longer than any shape

// Runs positions [begin, end) as one chunk, in segments that end at multiples of `segment`; the rows of later
// chunks and of other segments are NaN.
std::vector<bf16> RunChunk(OpRig& rig, const Shape& s, const Inputs& in, int begin, int end,
                           int segment = kOneSegment) {
  const int count = end - begin;
  const int q_width = s.heads * (s.nope + s.rope);
  const int kv_width = s.heads * (s.nope + s.value);
  const int state_width = s.heads * (s.value + kPrefillStateExtra);
  const std::vector<bf16> q(in.q.begin() + begin * q_width, in.q.begin() + end * q_width);
  bf16* out = rig.Poisoned<bf16>(count * s.heads * s.value);
  const Matrix<bf16> outs = Dense(out, count, s.heads * s.value);
  const Matrix<const bf16> queries = Dense<const bf16>(rig.Put(q), count, q_width);
  const Matrix<float> state = segment == kOneSegment
                                  ? Matrix<float>{}
                                  : Dense(rig.Poisoned<float>(count * state_width), count, state_width);
  for (int first = s.first_position; first < end; first = (first / segment + 1) * segment) {
    const int segment_end = std::min(end, (first / segment + 1) * segment);
    const int skipped = std::max(0, first - begin);
    const int keys = segment_end - first;
    std::vector<bf16> kv(in.kv.size(), bf16{0x7fc0}), k_pe(in.k_pe.size(), bf16{0x7fc0});
    std::copy_n(&in.kv[(first - s.first_position) * kv_width], keys * kv_width, kv.begin());
    std::copy_n(&in.k_pe[(first - s.first_position) * s.rope], keys * s.rope, k_pe.begin());
    const MlaPrefillParams params = {.out = outs.row_range(skipped, count - skipped),
                                     .state = state.row_range(skipped, count - skipped),
                                     .q = queries.row_range(skipped, count - skipped),
                                     .kv = Dense<const bf16>(rig.Put(kv), keys, kv_width),
                                     .k_pe = Dense<const bf16>(rig.Put(k_pe), keys, s.rope),
                                     .chunk_first = begin + skipped,
                                     .first_position = s.first_position,
                                     .segment_first = first,
                                     .head_count = s.heads,
                                     .nope_dim = s.nope,
                                     .rope_dim = s.rope,
                                     .value_dim = s.value,
                                     .scale = ScaleOf(s)};
    rig.Run([&] { rig.ops().mla_prefill(rig.stream(), params); });
  }
  return rig.Get(out, count * s.heads * s.value);
}

void CheckRow(const Shape& s, const Inputs& in, int position, const bf16* out) {
  const int q_width = s.heads * (s.nope + s.rope);
  const int kv_width = s.heads * (s.nope + s.value);
  for (int h = 0; h < s.heads; ++h) {
    const HeadReference reference = ReferenceAttention(
        Floats(&in.q[position * q_width + h * (s.nope + s.rope)], s.nope + s.rope), ScaleOf(s),
        position + 1 - s.first_position,
        [&](int t) {
          return Joined(Floats(&in.kv[t * kv_width + h * (s.nope + s.value)], s.nope),
                        Floats(&in.k_pe[t * s.rope], s.rope));
        },
        [&](int t) { return Floats(&in.kv[t * kv_width + h * (s.nope + s.value) + s.nope], s.value); });
    for (int i = 0; i < s.value; ++i) {
      ASSERT_NEAR(ToFloat(out[h * s.value + i]), reference.out[i], reference.tolerance[i])
          << "position " << position << " head " << h << " element " << i;
    }
  }
}

TEST(MlaPrefill, EqualsTheReference) {
  for (const Shape& s : kShapes) {
    const Inputs in = MakeInputs(s);
    for (const std::string& isa : SupportedIsas()) {
      SCOPED_TRACE(std::string(s.name) + ", isa " + isa);
      OpRig rig({.isa = isa}, RunMode::kEager);
      const std::vector<bf16> out = RunChunk(rig, s, in, s.first_position, s.length);
      for (int position = s.first_position; position < s.length; ++position) {
        CheckRow(s, in, position, &out[(position - s.first_position) * s.heads * s.value]);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(MlaPrefill, ChunkBordersThreadsAndGraphsLeaveNoTrace) {
  for (const Shape& s : kShapes) {
    const Inputs in = MakeInputs(s);
    const int row_width = s.heads * s.value;
    for (const std::string& isa : SupportedIsas()) {
      OpRig whole_rig({.isa = isa}, RunMode::kEager);
      const std::vector<bf16> whole = RunChunk(whole_rig, s, in, s.first_position, s.length);
      for (const int chunk : {1, 7, 16, 63, 64, 65, 129}) {
        for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
          std::vector<bf16> joined;
          OpRig rig({.threads = chunk % 2 == 0 ? 3 : 1, .isa = isa}, mode);
          for (int begin = s.first_position; begin < s.length; begin += chunk) {
            const std::vector<bf16> part = RunChunk(rig, s, in, begin, std::min(begin + chunk, s.length));
            joined.insert(joined.end(), part.begin(), part.end());
          }
          ASSERT_EQ(BytesOf(joined.data(), joined.size()), BytesOf(whole.data(), whole.size()))
              << s.name << ", isa " << isa << ", chunks of " << chunk << ", row width " << row_width;
        }
      }
    }
  }
}

TEST(MlaPrefill, WindowsLeaveNoTrace) {
  for (const Shape& s : kShapes) {
    const Inputs in = MakeInputs(s);
    for (const std::string& isa : SupportedIsas()) {
      OpRig whole_rig({.isa = isa}, RunMode::kEager);
      const std::vector<bf16> whole = RunChunk(whole_rig, s, in, s.first_position, s.length);
      for (const int segment : {64, 128}) {
        for (const int chunk : {33, 64, 1000}) {
          std::vector<bf16> joined;
          OpRig rig({.threads = 3, .isa = isa}, chunk == 64 ? RunMode::kReplayed : RunMode::kEager);
          for (int begin = s.first_position; begin < s.length; begin += chunk) {
            const std::vector<bf16> part =
                RunChunk(rig, s, in, begin, std::min(begin + chunk, s.length), segment);
            joined.insert(joined.end(), part.begin(), part.end());
          }
          ASSERT_EQ(BytesOf(joined.data(), joined.size()), BytesOf(whole.data(), whole.size()))
              << s.name << ", isa " << isa << ", segments of " << segment << ", chunks of " << chunk;
        }
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
