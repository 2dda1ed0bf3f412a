#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/attention/kv_row_math.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

// One token's part in an entry: d values and gates.
struct Candidate {
  const float* values;
  const float* gates;
  const float* ape;
};

struct EntryScratch {
  float* gates;    // [d]
  float* largest;  // [d]
  float* sum;      // [d]
  float* out;      // [d]
};

FOREDRAFT_WIDE void TakeLargest(const Candidate& c, int64_t width, float* largest) {
  for (int64_t i = 0; i < width; ++i) {
    const float gate = c.gates[i] + c.ape[i];
    largest[i] = gate > largest[i] ? gate : largest[i];
  }
}

FOREDRAFT_WIDE void AddCandidate(const Candidate& c, int64_t width, const EntryScratch& s) {
  for (int64_t i = 0; i < width; ++i) {
    const float weight = Exp(c.gates[i] + c.ape[i] - s.largest[i]);
    s.sum[i] += weight;
    s.out[i] += weight * c.values[i];
  }
}

FOREDRAFT_WIDE void FinishEntry(const float* norm_weight, float eps, int64_t width, const EntryScratch& s) {
  for (int64_t i = 0; i < width; ++i) s.out[i] /= s.sum[i];
  const float factor = RmsFactor(s.out, width, eps);
  for (int64_t i = 0; i < width; ++i) s.out[i] = norm_weight[i] * (s.out[i] * factor);
}

// The part of the token at `position`: from this forward if it has the token, else from the state. `half`:
// which half of the token's channels.
Candidate CandidateAt(const CompressParams& p, int64_t row, int32_t position, int32_t half, int32_t width) {
  const int64_t at = RowAt(p.index, row, position);
  const int64_t offset = int64_t{half} * width;
  const float* ape = p.ape + int64_t{position % p.ratio} * p.values.cols + offset;
  if (at >= 0) return {p.values.row(at) + offset, p.gates.row(at) + offset, ape};
  const float* kept = p.state.row(p.index.slots[row], position);
  CHECK(kept != nullptr) << "slot " << p.index.slots[row] << " has no compressor state at " << position;
  return {kept + offset, kept + p.values.cols + offset, ape};
}

// Writes the entry whose span the row completes.
void WriteEntry(const CompressParams& p, int64_t row, const EntryScratch& s) {
  const int32_t width = p.layout.width();
  const int32_t last = p.index.positions[row];
  const int32_t first = last + 1 - p.ratio;
  const bool overlaps = p.overlapping != 0;
  const auto for_each = [&](const auto& visit) {
    if (overlaps && first > 0) {
      for (int32_t t = first - p.ratio; t < first; ++t) visit(CandidateAt(p, row, t, 0, width));
    }
    for (int32_t t = first; t <= last; ++t) visit(CandidateAt(p, row, t, overlaps ? 1 : 0, width));
  };
  std::fill_n(s.largest, width, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum, width, 0.0f);
  std::fill_n(s.out, width, 0.0f);
  for_each([&](const Candidate& c) { TakeLargest(c, width, s.largest); });
  for_each([&](const Candidate& c) { AddCandidate(c, width, s); });
  FinishEntry(p.norm_weight, p.eps, width, s);
  uint8_t* const entry = p.entries.row(p.index.slots[row], last / p.ratio);
  CHECK(entry != nullptr) << "slot " << p.index.slots[row] << " has no memory for entry " << last / p.ratio;
  WriteKeyRow(s.out, p.cos_sin + int64_t{first} * p.layout.rope_dim, p.layout, entry);
}

}  // namespace

void Compress(const CpuContext& context, const CompressParams& p) {
  const int32_t width = p.layout.width();
  const int64_t channels = p.values.cols;
  CHECK_EQ(channels, (p.overlapping != 0 ? 2 : 1) * int64_t{width});
  CHECK_EQ(p.state.width, 2 * channels);
  // Entries are written before states: a row of this forward may take the memory of a position that an entry
  // still reads.
  context.pool.ParallelFor(p.index.rows, 24 * channels, [&](int64_t begin, int64_t end) {
    float* const memory = ThreadScratch<float>(size_t{4} * width);
    const EntryScratch scratch = {memory, memory + width, memory + 2 * width, memory + 3 * width};
    for (int64_t r = begin; r < end; ++r) {
      if (p.index.slots[r] >= 0 && (p.index.positions[r] + 1) % p.ratio == 0) WriteEntry(p, r, scratch);
    }
  });
  context.pool.ParallelFor(p.index.rows, channels, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (p.index.slots[r] < 0) continue;
      float* const kept = p.state.row(p.index.slots[r], p.index.positions[r]);
      if (kept == nullptr) continue;
      std::memcpy(kept, p.values.row(r), channels * sizeof(float));
      std::memcpy(kept + channels, p.gates.row(r), channels * sizeof(float));
    }
  });
}

}  // namespace foredraft::cpu
