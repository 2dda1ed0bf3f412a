// mla_decode with FP8 products: as docs/invariants.md section 3 defines them, computed in double here, and
// beside the exact attention over what was rounded.
//
// Hopper's matrix units cut what they add: an instruction aligns 32 products, and the sum before them, to the
// largest of them, cuts all to 13 bits below its leading bit, and cuts the sum likewise (microsoft/MMA-Sim;
// tests/gpu/fp8_probe.h measures it). CutSum bounds that for the products that there are.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/ops/attention_reference.h"
#include "tests/ops/decode_rows.h"

namespace foredraft {
namespace {

constexpr KvFormat kProducts(DType::kF8E4M3, /*fp8_products_of=*/true);
constexpr int kTile = 64;
// The length of a split of rows as short as those here.
int SplitLen() { return TestBackend() == "cpu" ? 256 : 512; }

using Codes = KvCodes<DType::kF8E4M3>;

// What a row of the cache is: its values, and the scales of their groups.
struct CachedRow {
  std::vector<float> values;  // c, k_pe
  std::vector<float> scales;
};

CachedRow CachedRowOf(const KvFixture& kv, const KvRowLayout& layout, int slot, int position) {
  std::vector<bf16> row(kv.Row(slot, position), kv.Row(slot, position) + kv.width());
  std::vector<uint8_t> coded(layout.bytes());
  RoundLatent(layout, row.data(), coded.data());
  const auto* const scales = reinterpret_cast<const float*>(coded.data() + layout.scale_offset());
  return {Floats(row.data(), kv.width()), {scales, scales + layout.group_count()}};
}

// Whether the kernel for Hopper multiplies codes as they are: it is there for R1's widths.
bool CutsSums(OpRig& rig, const DecodeRows& shape) {
  return rig.device().name().find(" sm_90a ") != std::string::npos && shape.latent == 512 && shape.rope == 64;
}

// A sum of products of codes, exact, and by how much it is off at most where it is cut.
struct CutSum {
  double exact = 0;
  double error = 0;

  // The products of one instruction.
  void Add(const std::vector<double>& products) {
    double largest = std::abs(exact) + error;
    for (const double product : products) largest = std::max(largest, std::abs(product));
    if (largest == 0) return;
    const double unit = UnitOf(largest);
    double cut = error > 0 || !IsMultiple(exact, unit) ? unit : 0;
    for (const double product : products) {
      if (!IsMultiple(product, unit)) cut += unit;
      exact += product;
    }
    error += cut;
    const double of_sum = std::abs(exact) + error;
    if (of_sum > 0 && (error > 0 || !IsMultiple(exact, UnitOf(of_sum)))) error += UnitOf(of_sum);
  }

 private:
  static double UnitOf(double x) { return std::ldexp(1.0, std::ilogb(x) - 13); }
  static bool IsMultiple(double x, double unit) { return std::trunc(x / unit) * unit == x; }
};
constexpr int kInstruction = 32;  // products

// The sums of one head while it goes through the tiles.
class ProductsReference {
 public:
  ProductsReference(const KvRowLayout& layout, std::vector<float> query, double scale, bool cuts_sums)
      : layout_(layout),
        query_(std::move(query)),
        scale_(scale),
        cuts_sums_(cuts_sums),
        sums_(layout.latent_dim),
        slack_(sums_),
        magnitudes_(sums_) {}

  // A row's places [first, last], rows[i] at first + i.
  HeadReference Attend(const std::vector<CachedRow>& rows, int first) {
    std::vector<double> scores;
    for (const CachedRow& row : rows) scores.push_back(Score(row));
    const double largest = *std::max_element(scores.begin(), scores.end());
    // Half an ulp for each rounding of a score's sum; the maximum has as many.
    const double of_score = (static_cast<double>(query_.size()) + 4) * kF32Roundoff * magnitude_ + cut_;
    double max = 0, sum = 0;
    for (size_t i = 0; i < rows.size();) {
      const int place = first + static_cast<int>(i);
      const size_t end = std::min(rows.size(), i + kTile - place % kTile);
      const bool begins_split = i == 0 || place % SplitLen() == 0;
      const double of_tile = *std::max_element(scores.begin() + i, scores.begin() + end);
      max = begins_split ? of_tile : std::max(max, of_tile);
      AddTile({rows.begin() + i, rows.begin() + end}, {scores.begin() + i, scores.begin() + end}, place, max,
              std::exp(max - largest), 2 * of_score + 8 * kF32Roundoff);
      for (; i < end; ++i) sum += std::exp(scores[i] - largest);
    }
    HeadReference reference;
    const double relative = 2 * of_score + (3 * static_cast<double>(rows.size()) + 64) * kF32Roundoff;
    for (size_t c = 0; c < sums_.size(); ++c) {
      const double error = (slack_[c] + relative * magnitudes_[c]) / sum;
      reference.out.push_back(sums_[c] / sum);
      reference.tolerance.push_back(error + kBf16Roundoff * (std::abs(reference.out[c]) + error));
    }
    return reference;
  }

 private:
  double Score(const CachedRow& row) {
    double score = 0, products = 0;
    for (size_t c = 0; c < query_.size(); ++c) {
      const double product = scale_ * query_[c] * row.values[c];
      score += product;
      products += std::abs(product);
    }
    magnitude_ = std::max(magnitude_, products);
    if (cuts_sums_) cut_ = std::max(cut_, CutOf(row));
    return score;
  }
  // Of a score: scales are powers of two, so products may have them.
  double CutOf(const CachedRow& row) const {
    double cut = 0;
    for (int group = 0; group < layout_.group_count(); ++group) {
      CutSum sum;
      for (int first = group * layout_.group; first < (group + 1) * layout_.group; first += kInstruction) {
        std::vector<double> products;
        for (int c = first; c < first + kInstruction; ++c)
          products.push_back(scale_ * query_[c] * row.values[c]);
        sum.Add(products);
      }
      cut += sum.error;
    }
    return cut;
  }

  // of_weight: the relative error of a weight, which may take it over the border between two codes.
  // place: of the first row.
  void AddTile(const std::vector<CachedRow>& rows, const std::vector<double>& scores, int place, double max,
               double factor, double of_weight) {
    for (int c = 0; c < layout_.latent_dim; ++c) {
      const int group = c / layout_.group;
      double largest = 0;
      for (const CachedRow& row : rows) largest = std::max<double>(largest, row.scales[group]);
      std::vector<double> products[kTile / kInstruction];
      for (size_t i = 0; i < rows.size(); ++i) {
        const double up = 256 * rows[i].scales[group] / largest;
        const auto rounded = [&](double weight) {
          return Codes::Nearest(static_cast<float>(weight * up)) / up;
        };
        const double weight = std::exp(scores[i] - max), value = rows[i].values[c] * factor;
        sums_[c] += rounded(weight) * value;
        magnitudes_[c] += std::abs(rounded(weight) * value);
        slack_[c] +=
            (rounded(weight * (1 + of_weight)) - rounded(weight * (1 - of_weight))) * std::abs(value);
        products[(place + i) % kTile / kInstruction].push_back(rounded(weight) * value);
      }
      if (!cuts_sums_) continue;
      CutSum sum;
      for (const std::vector<double>& of_instruction : products) sum.Add(of_instruction);
      slack_[c] += sum.error;
    }
  }

  const KvRowLayout layout_;
  const std::vector<float> query_;
  const double scale_;
  const bool cuts_sums_;
  double cut_ = 0;                                 // the largest of a score
  double magnitude_ = 0;                           // the largest sum of |products| of a score
  std::vector<double> sums_, slack_, magnitudes_;  // [latent], times the largest weight
};

// One slot. positions_differ: in size, so that scales do.
KvFixture MakeCache(Noise& noise, const DecodeRows& shape, bool positions_differ) {
  KvFixture kv(noise, 1, shape.cache_len(), shape.tokens_per_block, shape.latent, shape.rope, DType::kF8E4M3);
  for (int t = 0; positions_differ && t < shape.cache_len(); ++t) {
    for (int c = 0; c < shape.latent; ++c)
      kv.Row(0, t)[c] = ToBf16(std::ldexp(ToFloat(kv.Row(0, t)[c]), t % 7 - 3));
  }
  return kv;
}

void ExpectDefinition(const DecodeRows& shape, const KvFixture& kv, const DecodeQueries& queries) {
  const KvRowLayout layout = {shape.latent, shape.rope, DType::kF8E4M3};
  std::vector<CachedRow> rows;
  for (int t = 0; t < shape.cache_len(); ++t) rows.push_back(CachedRowOf(kv, layout, 0, t));
  std::vector<BatchRow> batch;
  for (int r = 0; r < shape.row_count(); ++r) batch.push_back({r, 0, shape.positions[r]});
  for (const std::string& isa : SupportedIsas()) {
    OpRig rig({.isa = isa}, RunMode::kEager);
    const std::vector<Bytes> outputs = RunBatch(rig, shape, kv, queries, batch, kProducts);
    for (int r = 0; r < shape.row_count(); ++r) {
      const std::vector<bf16> out = FromBytes<bf16>(outputs[r]);
      for (int h = 0; h < shape.heads; ++h) {
        SCOPED_TRACE(absl::StrCat(shape.name, ", isa ", isa, ", row ", r, ", head ", h));
        const int head = r * shape.heads + h;
        std::vector<bf16> q_lat(&queries.q_lat[head * shape.latent],
                                &queries.q_lat[head * shape.latent] + shape.latent);
        RoundLatent(layout, q_lat.data());
        ProductsReference reference(
            layout,
            Joined(Floats(q_lat.data(), shape.latent),
                   Floats(&queries.q[head * (shape.nope + shape.rope) + shape.nope], shape.rope)),
            ScaleOf(shape), CutsSums(rig, shape));
        const HeadReference expected =
            reference.Attend({rows.begin() + shape.first_position, rows.begin() + shape.positions[r] + 1},
                             shape.first_position);
        for (int c = 0; c < shape.latent; ++c) {
          ASSERT_NEAR(ToFloat(out[h * shape.latent + c]), expected.out[c], expected.tolerance[c])
              << "element " << c;
        }
      }
    }
  }
}

TEST(Fp8Products, AreThoseOfTheDefinition) {
  const DecodeRows kShapes[] = {
      {"abacus, module 1", 4, 64, 16, 32, 32, 1, {3, 64, 127, 300}},
      {"R1 slice", 8, 512, 64, 128, 64, 0, {5, 63, 64, 191, 330}},
      {"three groups", 5, 300, 8, 24, 16, 0, {4, 100, 256}},
      {"ragged", 9, 37, 6, 11, 5, 3, {3, 63, 65}},
  };
  for (const DecodeRows& shape : kShapes) {
    Noise noise(23);
    const DecodeQueries queries = MakeQueries(noise, shape, shape.row_count());
    ExpectDefinition(shape, MakeCache(noise, shape, /*positions_differ=*/true), queries);
  }
}

// Whole numbers from -2 to 2: no unit cuts their sums, so the scores are exact, and with them the codes of
// all weights. The scale leaves most of a tile's keys some weight.
TEST(Fp8Products, OfExactScoresHaveTheDefinitionsCodes) {
  const DecodeRows shape = {"whole numbers", 4, 512, 64, 2000, 64, 1, {40, 127, 190}};
  Noise noise(41);
  DecodeQueries queries = MakeQueries(noise, shape, shape.row_count());
  KvFixture kv = MakeCache(noise, shape, /*positions_differ=*/false);
  const auto round = [](bf16& x) { x = ToBf16(std::clamp(std::nearbyint(ToFloat(x)), -2.0f, 2.0f)); };
  std::for_each(queries.q_lat.begin(), queries.q_lat.end(), round);
  std::for_each(queries.q.begin(), queries.q.end(), round);
  for (int t = 0; t < shape.cache_len(); ++t) std::for_each(kv.Row(0, t), kv.Row(0, t) + kv.width(), round);
  ExpectDefinition(shape, kv, queries);
}

// The relative error of the output, beside exact attention over rows that are not rounded.
double ErrorOf(const DecodeRows& shape, const KvFixture& kv, const DecodeQueries& queries, KvFormat format) {
  OpRig rig({}, RunMode::kEager);
  const int last = shape.positions[0];
  const std::vector<bf16> out = FromBytes<bf16>(RunBatch(rig, shape, kv, queries, {{0, 0, last}}, format)[0]);
  double error = 0, size = 0;
  for (int h = 0; h < shape.heads; ++h) {
    const HeadReference exact = ReferenceAttention(
        Joined(Floats(&queries.q_lat[h * shape.latent], shape.latent),
               Floats(&queries.q[h * (shape.nope + shape.rope) + shape.nope], shape.rope)),
        ScaleOf(shape), last + 1, [&](int t) { return Floats(kv.Row(0, t), shape.latent + shape.rope); },
        [&](int t) { return Floats(kv.Row(0, t), shape.latent); });
    for (int c = 0; c < shape.latent; ++c) {
      error += std::pow(ToFloat(out[h * shape.latent + c]) - exact.out[c], 2);
      size += std::pow(exact.out[c], 2);
    }
  }
  return std::sqrt(error / size);
}

// Channels of equal and of unequal size. Where scores lie closer together than these, the weights' rounding
// counts for more: 1.9 times the cache's error where they differ by 1.
TEST(Fp8Products, HaveLittleMoreErrorThanTheCache) {
  const DecodeRows shape = {"R1", 16, 512, 64, 128, 64, 0, {2047}};
  for (const bool unequal : {false, true}) {
    Noise noise(29);
    const DecodeQueries queries = MakeQueries(noise, shape, 1);
    KvFixture kv(noise, 1, shape.cache_len(), shape.tokens_per_block, shape.latent, shape.rope);
    for (int c = 0; unequal && c < shape.latent; ++c) {
      const float size = std::exp(noise.Normal());
      for (int t = 0; t < shape.cache_len(); ++t) kv.Row(0, t)[c] = ToBf16(size * ToFloat(kv.Row(0, t)[c]));
    }
    const double bf16_cache = ErrorOf(shape, kv, queries, DType::kBF16);
    const double fp8_cache = ErrorOf(shape, kv, queries, DType::kF8E4M3);
    const double products = ErrorOf(shape, kv, queries, kProducts);
    RecordProperty(unequal ? "unequal" : "equal", absl::StrCat(bf16_cache, ", ", fp8_cache, ", ", products));
    EXPECT_LT(bf16_cache, fp8_cache / 4);
    EXPECT_LT(fp8_cache, products);
    EXPECT_LE(products, 1.5 * fp8_cache);
  }
}

// One key is 9 above the others, which together weigh as much: E4M3(p) without 2^8 would drop them all.
TEST(Fp8Products, KeepATailOfSmallWeights) {
  const DecodeRows shape = {"tail", 1, 128, 16, 16, 64, 0, {8102}};
  Noise noise(31);
  DecodeQueries queries = MakeQueries(noise, shape, 1);
  KvFixture kv(noise, 1, shape.cache_len(), shape.tokens_per_block, shape.latent, shape.rope);
  std::fill(queries.q_lat.begin(), queries.q_lat.end(), bf16{0});
  std::fill(queries.q.begin(), queries.q.end(), bf16{0});
  queries.q[shape.nope] = ToBf16(9.0f / ScaleOf(shape));
  constexpr int kPeak = 5000;
  for (int t = 0; t < shape.cache_len(); ++t) {
    std::fill_n(kv.Row(0, t), shape.latent, ToBf16(t == kPeak ? -1.0f : 1.0f));
    std::fill_n(kv.Row(0, t) + shape.latent, shape.rope, bf16{0});
    kv.Row(0, t)[shape.latent] = ToBf16(t == kPeak ? 1.0f : 0.0f);
  }
  const double tail = shape.positions[0] * std::exp(-9.0), exact = (tail - 1) / (tail + 1);
  for (const std::string& isa : SupportedIsas()) {
    OpRig rig({.isa = isa}, RunMode::kEager);
    const Bytes output = RunBatch(rig, shape, kv, queries, {{0, 0, shape.positions[0]}}, kProducts)[0];
    // A weight is rounded by up to 1 / 16 of itself where the peak is the maximum, in its own split.
    for (const bf16 value : FromBytes<bf16>(output)) EXPECT_NEAR(ToFloat(value), exact, 0.01) << isa;
  }
}

// A position that a row attends is visible where it is broken.
TEST(Fp8Products, ABrokenRowIsVisible) {
  for (const DecodeRows& shape : {DecodeRows{"broken", 2, 300, 16, 16, 32, 0, {100}},
                                  DecodeRows{"broken, R1's widths", 2, 512, 64, 128, 64, 0, {100}}}) {
    Noise noise(37);
    const DecodeQueries queries = MakeQueries(noise, shape, 1);
    KvFixture kv = MakeCache(noise, shape, /*positions_differ=*/false);
    kv.Row(0, 70)[3] = bf16{0x7fc0};
    for (const std::string& isa : SupportedIsas()) {
      OpRig rig({.isa = isa}, RunMode::kEager);
      const std::vector<bf16> out =
          FromBytes<bf16>(RunBatch(rig, shape, kv, queries, {{0, 0, 100}}, kProducts)[0]);
      for (const bf16 value : out) EXPECT_TRUE(std::isnan(ToFloat(value))) << shape.name << ", isa " << isa;
    }
  }
}

}  // namespace
}  // namespace foredraft
