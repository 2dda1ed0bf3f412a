// mla_decode of rows that attend a list of positions.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/ops/attention_reference.h"
#include "tests/ops/kv_fixture.h"
#include "tests/ops/op_harness.h"

namespace foredraft {
namespace {

struct Shape {
  const char* name;
  int heads, latent, rope, nope, tokens_per_block, first_position, top_k;
  std::vector<int> positions;  // of the rows

  int row_count() const { return static_cast<int>(positions.size()); }
  int head_dim() const { return nope + rope; }
};

// Positions below, at and above the border, where a row begins to attend its list.
const Shape kShapes[] = {
    {"abacus", 4, 64, 16, 32, 32, 0, 40, {3, 38, 39, 40, 41, 100, 190}},
    {"module 1, a list of one", 4, 64, 16, 32, 16, 1, 1, {1, 2, 3, 90}},
    {"64 heads of R1", 64, 512, 64, 128, 64, 0, 96, {95, 96, 300}},
    {"module 2, ragged", 9, 37, 6, 11, 5, 2, 67, {10, 68, 69, 70, 200}},
    {"several splits of the CPU", 7, 275, 22, 11, 16, 0, 600, {599, 600, 1000}},
    {"several splits", 4, 64, 16, 32, 64, 1, 1100, {1100, 1101, 2500}},
};

// Queries, cache and lists of a shape's rows.
struct Inputs {
  Shape shape;
  std::vector<bf16> q_lat, q;
  KvFixture kv;
  std::vector<std::vector<int32_t>> lists;  // of each row: top_k ascending positions, then -1

  Inputs(const Shape& s, Noise& noise, DType dtype)
      : shape(s),
        q_lat(noise.Bf16s(size_t(s.row_count()) * s.heads * s.latent)),
        q(noise.Bf16s(size_t(s.row_count()) * s.heads * s.head_dim())),
        kv(noise, 2, *std::max_element(s.positions.begin(), s.positions.end()) + 9, s.tokens_per_block,
           s.latent, s.rope, dtype) {
    for (const int position : s.positions) lists.push_back(RandomList(noise, position));
  }

  std::vector<int32_t> RandomList(Noise& noise, int position) const {
    std::vector<int32_t> all(position + 1 - shape.first_position);
    std::iota(all.begin(), all.end(), shape.first_position);
    for (size_t i = all.size() - 1; i > 0; --i) std::swap(all[i], all[noise.Int(0, static_cast<int>(i))]);
    all.resize(std::min<size_t>(all.size(), shape.top_k));
    std::sort(all.begin(), all.end());
    all.resize(shape.top_k, -1);
    return all;
  }

  // What row `row` attends, by its list or by its position.
  std::vector<int32_t> Attended(int row) const {
    std::vector<int32_t> attended = lists[row];
    attended.erase(std::find(attended.begin(), attended.end(), -1), attended.end());
    return attended;
  }

  std::vector<Bytes> Run(OpRig& rig, const std::vector<int>& rows, bool with_lists = true) const {
    const int count = static_cast<int>(rows.size());
    const int lat_width = shape.heads * shape.latent, q_width = shape.heads * shape.head_dim();
    std::vector<int32_t> slots, positions, selected;
    for (const int row : rows) {
      slots.push_back(row % kv.slot_count());
      positions.push_back(shape.positions[row]);
      selected.insert(selected.end(), lists[row].begin(), lists[row].end());
    }
    bf16* const out = rig.Poisoned<bf16>(count * lat_width);
    const MlaDecodeParams params = {
        .out = Dense(out, count, lat_width),
        .q_lat = Dense<const bf16>(rig.Put(RowsOf(q_lat, lat_width, rows)), count, lat_width),
        .q = Dense<const bf16>(rig.Put(RowsOf(q, q_width, rows)), count, q_width),
        .layer = kv.Put(rig),
        .index = {rig.Put(slots), rig.Put(positions), count},
        .head_count = shape.heads,
        .head_dim = shape.head_dim(),
        .first_position = shape.first_position,
        .selected = with_lists ? rig.Put(selected) : nullptr,
        .selected_count = with_lists ? shape.top_k : 0,
        .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim()))};
    rig.Run([&] { rig.ops().mla_decode(rig.stream(), params); });
    return SplitRows(rig.Get(out, count * lat_width), lat_width);
  }

  void Check(int row, const Bytes& output) const {
    const std::vector<bf16> values = FromBytes<bf16>(output);
    const std::vector<int32_t> attended = Attended(row);
    for (int head = 0; head < shape.heads; ++head) {
      const int64_t at = int64_t{row} * shape.heads + head;
      const auto key = [&](int t) { return kv.Row(row % kv.slot_count(), attended[t]); };
      const HeadReference reference = ReferenceAttention(
          Joined(Floats(&q_lat[at * shape.latent], shape.latent),
                 Floats(&q[(at + 1) * shape.head_dim() - shape.rope], shape.rope)),
          1.0 / std::sqrt(double(shape.head_dim())), static_cast<int>(attended.size()),
          [&](int t) { return Floats(key(t), shape.latent + shape.rope); },
          [&](int t) { return Floats(key(t), shape.latent); });
      for (int i = 0; i < shape.latent; ++i) {
        ASSERT_NEAR(ToFloat(values[head * shape.latent + i]), reference.out[i], reference.tolerance[i])
            << "position " << shape.positions[row] << ", head " << head << ", element " << i;
      }
    }
  }
};

TEST(ListedDecode, Holds) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    for (const Shape& shape : kShapes) {
      Noise noise(31);
      const Inputs inputs(shape, noise, dtype);
      ExpectOpHolds({.name = shape.name,
                     .row_count = shape.row_count(),
                     .run = [&](OpRig& rig, const std::vector<int>& rows) { return inputs.Run(rig, rows); },
                     .check = [&](int row, const Bytes& output) { inputs.Check(row, output); }});
      if (HasFailure()) return;
    }
  }
}

// A row with no more positions than a list has is the row without lists, and its list is not read.
TEST(ListedDecode, ShortContextsHaveTheBitsOfFullAttention) {
  for (const Shape& shape : kShapes) {
    Noise noise(33);
    Inputs inputs(shape, noise, DType::kBF16);
    for (int row = 0; row < shape.row_count(); ++row) {
      if (shape.positions[row] - shape.first_position >= shape.top_k) continue;
      std::fill(inputs.lists[row].begin(), inputs.lists[row].end(), 1 << 30);
      OpRig rig({}, RunMode::kEager);
      EXPECT_EQ(inputs.Run(rig, {row}), inputs.Run(rig, {row}, false)) << shape.name << ", row " << row;
    }
  }
}

// Splits and tiles are counted over places: a list of adjacent positions gives the bits of the row that ends
// there.
TEST(ListedDecode, AListOfTheFirstPositionsIsTheRowThatEndsWithThem) {
  for (const Shape& shape : kShapes) {
    Noise noise(35);
    Shape two = shape;
    two.positions = {shape.first_position + shape.top_k + 20, shape.first_position + shape.top_k - 1};
    Inputs inputs(two, noise, DType::kBF16);
    const auto copy_row = [](std::vector<bf16>& rows) {
      std::copy(rows.begin(), rows.begin() + rows.size() / 2, rows.begin() + rows.size() / 2);
    };
    copy_row(inputs.q_lat);
    copy_row(inputs.q);
    for (int position = 0; position < two.positions[0]; ++position) {
      std::copy_n(inputs.kv.Row(0, position), inputs.kv.width(), inputs.kv.Row(1, position));
    }
    std::iota(inputs.lists[0].begin(), inputs.lists[0].end(), shape.first_position);
    for (const std::string& isa : SupportedIsas()) {
      OpRig rig({.isa = isa}, RunMode::kEager);
      const std::vector<Bytes> outputs = inputs.Run(rig, {0, 1});
      EXPECT_EQ(outputs[0], outputs[1]) << shape.name << ", isa " << isa;
    }
  }
}

// Lists that end before their room does, down to one position.
TEST(ListedDecode, ListsMayEndEarly) {
  Shape shape = kShapes[0];
  shape.positions = {50, 51, 52, 53};
  Noise noise(37);
  Inputs inputs(shape, noise, DType::kBF16);
  const int counts[] = {1, 7, 39, 40};
  for (int row = 0; row < 4; ++row) {
    std::fill(inputs.lists[row].begin() + counts[row], inputs.lists[row].end(), -1);
  }
  OpRig rig({}, RunMode::kEager);
  const std::vector<Bytes> outputs = inputs.Run(rig, {0, 1, 2, 3});
  for (int row = 0; row < 4; ++row) inputs.Check(row, outputs[row]);
}

TEST(ListedDecode, PositionsOutsideTheListMayBeNaN) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    for (const Shape& shape : kShapes) {
      Noise noise(39);
      const Inputs whole(shape, noise, dtype);
      for (int row = 0; row < shape.row_count(); ++row) {
        Inputs masked = whole;
        const std::vector<int32_t> attended = whole.Attended(row);
        for (int position = 0; position <= shape.positions[row]; ++position) {
          if (std::binary_search(attended.begin(), attended.end(), position)) continue;
          masked.kv.Poison(row % 2, position, position + 1);
        }
        OpRig rig({}, RunMode::kEager);
        EXPECT_EQ(masked.Run(rig, {row}), whole.Run(rig, {row})) << shape.name << ", row " << row;
      }
    }
  }
}

}  // namespace
}  // namespace foredraft
