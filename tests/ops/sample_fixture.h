#pragma once

// Calls of sample, and its reference.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/philox.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/slot_fixture.h"

namespace foredraft {

// ---- calls ----

struct Row {
  int slot;
  int position;
  std::vector<float> logits;
  int id = 0;
  int row_in_slot = 0;
  int mask = -1;  // of the masks given to RunSample
};

struct Sampled {
  std::vector<int32_t> tokens;
  std::vector<LogprobOutput> logprobs;
};

// The words of masks that allow these tokens.
inline std::vector<uint32_t> MaskWords(const std::vector<std::vector<int32_t>>& allowed, int vocab) {
  const size_t width = MaskWordCount(vocab);
  std::vector<uint32_t> words(allowed.size() * width);
  for (size_t i = 0; i < allowed.size(); ++i) {
    for (const int32_t id : allowed[i]) words[i * width + id / 32] |= 1u << (id % 32);
  }
  return words;
}

// `mask_words`: of the masks that rows name; empty: no row has one. token_count: as in SampleParams.
// `others`: the mask of rows without one; empty: none.
inline Sampled RunSample(OpRig& rig, const SlotFixture& slots, const std::vector<Row>& rows,
                         const std::vector<uint32_t>& mask_words = {}, int token_count = 0,
                         const std::vector<uint32_t>& others = {}) {
  const int count = static_cast<int>(rows.size());
  const int vocab = slots.vocab_size;
  std::vector<float> logits;
  std::vector<int32_t> row_slots, positions, ids, row_in_slot, row_masks;
  for (const Row& row : rows) {
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    row_slots.push_back(row.slot);
    positions.push_back(row.position);
    ids.push_back(row.id);
    row_in_slot.push_back(row.row_in_slot);
    row_masks.push_back(row.mask);
  }
  RowMasks masks;
  if (!mask_words.empty()) masks = {.words = rig.Put(mask_words), .of_row = rig.Put(row_masks)};
  if (!others.empty()) masks.of_others = rig.Put(others);
  int32_t* out = rig.Poisoned<int32_t>(count);
  LogprobOutput* logprobs = rig.Poisoned<LogprobOutput>(count);
  const SampleParams params = {.out = out,
                               .logprobs = logprobs,
                               .logits = Dense<const float>(rig.Put(logits), count, vocab),
                               .index = {rig.Put(row_slots), rig.Put(positions), count},
                               .ids = rig.Put(ids),
                               .row_in_slot = rig.Put(row_in_slot),
                               .slots = slots.Put(rig),
                               .scratch = rig.Poisoned<float>(count * vocab),
                               .masks = masks,
                               .token_count = token_count};
  rig.Run([&] { rig.ops().sample(rig.stream(), params); });
  return {rig.Get(out, count), rig.Get(logprobs, count)};
}

inline int SampleOne(const SlotConstants& constants, const std::vector<float>& logits, int position = 5) {
  SlotFixture slots(1, static_cast<int>(logits.size()));
  slots.constants[0] = constants;
  OpRig rig({}, RunMode::kEager);
  return RunSample(rig, slots, {{0, position, logits}}).tokens[0];
}

inline SlotConstants Neutral() { return SlotFixture(1, 1).constants[0]; }

// ---- reference ----

// The filtered distribution: id -> log q up to a constant. Sorts and doubles only.
inline std::map<int, double> ReferenceFilter(const SlotConstants& c, const std::vector<float>& logits) {
  std::vector<int> ids(logits.size());
  for (size_t v = 0; v < ids.size(); ++v) ids[v] = static_cast<int>(v);
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  const double top = logits[ids[0]] / c.temperature;
  const auto mass = [&](int v) { return std::exp(static_cast<double>(logits[v]) / c.temperature - top); };
  if (c.top_k > 0 && c.top_k < static_cast<int>(ids.size())) ids.resize(c.top_k);
  double total = 0.0;
  for (const int v : ids) total += mass(v);
  std::map<int, double> kept;
  double sum = 0.0;
  for (const int v : ids) {
    if (c.top_p < 1.0f && sum >= c.top_p * total) break;
    sum += mass(v);
    if (mass(v) >= c.min_p) kept[v] = std::log(mass(v));
  }
  return kept;
}

inline int ReferenceSample(const SlotConstants& c, const std::vector<float>& logits, int position) {
  int best = -1;
  double best_score = -1e300;
  for (const auto& [v, log_q] : ReferenceFilter(c, logits)) {
    const PhiloxBlock block =
        Philox4x32({static_cast<uint32_t>(v / 4), static_cast<uint32_t>(position + 1), 0, 0}, c.seed);
    const double u = (block[v % 4] + 0.5) / 4294967296.0;
    const double score = log_q - std::log(-std::log(u));
    if (score > best_score) {
      best = v;
      best_score = score;
    }
  }
  return best;
}

struct Filters {
  const char* name;
  float temperature, top_p, min_p;
  int top_k;
};

inline constexpr Filters kFilters[] = {
    {"greedy", 0.0f, 1.0f, 0.0f, 0},
    {"plain", 1.0f, 1.0f, 0.0f, 0},
    {"cold", 0.3f, 1.0f, 0.0f, 0},
    {"hot", 2.5f, 1.0f, 0.0f, 0},
    {"top-k 1", 1.0f, 1.0f, 0.0f, 1},
    {"top-k 3", 1.0f, 1.0f, 0.0f, 3},
    {"top-k over vocabulary", 1.0f, 1.0f, 0.0f, 5000},
    {"top-p", 1.0f, 0.7f, 0.0f, 0},
    {"top-p of almost nothing", 1.0f, 1e-6f, 0.0f, 0},
    {"top-p of almost all", 5.0f, 0.9999f, 0.0f, 0},
    {"min-p", 1.0f, 1.0f, 0.2f, 0},
    {"min-p 1", 1.0f, 1.0f, 1.0f, 0},
    {"all", 0.8f, 0.9f, 0.05f, 20},
    {"top-k and min-p", 1.3f, 1.0f, 0.1f, 50},
};

inline SlotConstants ConstantsOf(const Filters& f, uint64_t seed) {
  SlotConstants c = Neutral();
  c.temperature = f.temperature;
  c.top_p = f.top_p;
  c.min_p = f.min_p;
  c.top_k = f.top_k;
  c.seed = seed;
  return c;
}

}  // namespace foredraft
