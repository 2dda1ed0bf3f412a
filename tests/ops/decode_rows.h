#pragma once

// Rows for mla_decode over a cache of random rows.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "tests/ops/kv_fixture.h"
#include "tests/ops/op_harness.h"

namespace foredraft {

// The sizes of a layer, and the rows that attend it.
struct DecodeRows {
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

// A row of a batch: which queries, where.
struct BatchRow {
  int query;
  int slot;  // -1: idle, its queries are NaN
  int position;
};

struct DecodeQueries {
  std::vector<bf16> q_lat;  // [queries, heads * latent]
  std::vector<bf16> q;      // [queries, heads * (nope + rope)]
};

inline DecodeQueries MakeQueries(Noise& noise, const DecodeRows& shape, int count) {
  return {noise.Bf16s(count * shape.heads * shape.latent),
          noise.Bf16s(count * shape.heads * (shape.nope + shape.rope))};
}

inline float ScaleOf(const DecodeRows& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.nope + shape.rope));
}

// The output of each row. format: of the layer; by default the fixture's.
inline std::vector<Bytes> RunBatch(OpRig& rig, const DecodeRows& shape, const KvFixture& kv,
                                   const DecodeQueries& queries, const std::vector<BatchRow>& batch,
                                   std::optional<KvFormat> format = {}) {
  const int head_dim = shape.nope + shape.rope;
  const int lat_width = shape.heads * shape.latent;
  const int q_width = shape.heads * head_dim;
  const int count = static_cast<int>(batch.size());
  std::vector<bf16> lat_in(count * lat_width, bf16{0x7fc0}), q_in(count * q_width, bf16{0x7fc0});
  std::vector<int32_t> slots, positions;
  for (int i = 0; i < count; ++i) {
    slots.push_back(batch[i].slot);
    positions.push_back(batch[i].position);
    if (batch[i].slot < 0) continue;
    std::copy_n(&queries.q_lat[batch[i].query * lat_width], lat_width, &lat_in[i * lat_width]);
    std::copy_n(&queries.q[batch[i].query * q_width], q_width, &q_in[i * q_width]);
  }
  bf16* out = rig.Poisoned<bf16>(count * lat_width);
  const MlaDecodeParams params = {.out = Dense(out, count, lat_width),
                                  .q_lat = Dense<const bf16>(rig.Put(lat_in), count, lat_width),
                                  .q = Dense<const bf16>(rig.Put(q_in), count, q_width),
                                  .layer = kv.Put(rig, format.value_or(kv.dtype())),
                                  .index = {rig.Put(slots), rig.Put(positions), count},
                                  .head_count = shape.heads,
                                  .head_dim = head_dim,
                                  .first_position = shape.first_position,
                                  .scale = ScaleOf(shape)};
  rig.Run([&] { rig.ops().mla_decode(rig.stream(), params); });
  return SplitRows(rig.Get(out, count * lat_width), lat_width);
}

inline constexpr KvFormat kDecodeFormats[] = {DType::kBF16, DType::kF8E4M3, {DType::kF8E4M3, true}};

}  // namespace foredraft
