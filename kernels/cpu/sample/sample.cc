// argmax and sample. Logits outside of the row's mask are -infinity, so the filters count the others alone.
// Filters run in this order (as vLLM and TensorRT-LLM for top-k and top-p; min-p last):
//
// clang-format off
//   temperature   l = logit / T
//   top-k         keeps the k largest; ties: the lower id
//   top-p         keeps the shortest prefix, in that order, whose probabilities add up to p, after top-k
//   min-p         keeps tokens with q(v) >= min_p q(most probable); the softmax's divisor cancels
// clang-format on
//
// then argmax of l - max + Gumbel, because log q is l minus a constant.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"
#include "kernels/cpu/sample/adjusted_logits.h"
#include "kernels/cpu/sample/argmax.h"
#include "kernels/philox.h"
#include "kernels/rules/thinking_budget.h"

namespace foredraft::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// ---- filters ----

struct ByLogit {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

// The ids that top-k and top-p keep, most probable first. `ids` is [vocab]; returns how many.
int32_t KeepMostProbable(const SlotConstants& c, const float* logits, float largest, int32_t vocab,
                         int32_t* ids) {
  const auto mass = [&](int32_t v) { return static_cast<double>(Exp(logits[v] - largest)); };
  for (int32_t v = 0; v < vocab; ++v) ids[v] = v;
  const bool top_k = c.top_k > 0 && c.top_k < vocab;
  const int32_t limit = top_k ? c.top_k : vocab;
  double total = 0.0;
  if (!top_k) {
    for (int32_t v = 0; v < vocab; ++v) total += mass(v);
  }
  // Without top-k, a short prefix usually has enough mass: sort no more than needed.
  for (int32_t sorted = top_k ? limit : std::min(limit, 64);; sorted = std::min(limit, sorted * 8)) {
    if (sorted < vocab) std::nth_element(ids, ids + sorted - 1, ids + vocab, ByLogit{logits});
    std::sort(ids, ids + sorted, ByLogit{logits});
    if (c.top_p >= 1.0f) return sorted;
    if (top_k) {
      total = 0.0;
      for (int32_t i = 0; i < sorted; ++i) total += mass(ids[i]);
    }
    double sum = 0.0;
    for (int32_t i = 0; i < sorted; ++i) {
      sum += mass(ids[i]);
      if (sum >= static_cast<double>(c.top_p) * total) return i + 1;
    }
    if (sorted == limit) return limit;
  }
}

// ---- noise ----

struct Best {
  int32_t id;
  float score;

  void Update(int32_t other_id, float other_score) {
    if (other_score > score || (other_score == score && other_id < id)) *this = {other_id, other_score};
  }
};

struct Noise {
  uint64_t seed;
  int32_t position;

  float operator()(int32_t v) const { return Gumbel(NoiseBlock(seed, position, v / 4)[v % 4]); }
};

// `logits` are scaled by the temperature, without NaN.
int32_t SampleToken(const SlotConstants& c, const float* logits, int32_t vocab, const Noise& noise) {
  const int32_t top = ArgmaxOf(logits, vocab);
  const float largest = logits[top];
  const auto passes_min_p = [&](int32_t v) { return c.min_p <= 0.0f || Exp(logits[v] - largest) >= c.min_p; };
  Best best = {top, noise(top)};
  if ((c.top_k > 0 && c.top_k < vocab) || c.top_p < 1.0f) {
    int32_t* ids = ThreadScratch<int32_t>(vocab);
    const int32_t kept = KeepMostProbable(c, logits, largest, vocab, ids);
    for (int32_t i = 1; i < kept && passes_min_p(ids[i]); ++i) {
      best.Update(ids[i], logits[ids[i]] - largest + noise(ids[i]));
    }
    return best.id;
  }
  for (int32_t v = 0; v < vocab; ++v) {
    // Most tokens lose even with the largest possible noise: skip the generator for them.
    if (logits[v] - largest + kMaxGumbel < best.score || v == top || !passes_min_p(v)) continue;
    best.Update(v, logits[v] - largest + noise(v));
  }
  return best.id;
}

// ---- logprobs ----

// `draft`: the one that the row verifies, or the token.
void WriteLogprobs(const float* logits, int32_t vocab, int32_t token, int32_t draft, int32_t top_count,
                   LogprobOutput& out) {
  const float largest = LargestOf(logits, vocab);
  double sum = 0.0;
  for (int32_t v = 0; v < vocab; ++v) sum += static_cast<double>(Exp(logits[v] - largest));
  const double log_sum = static_cast<double>(largest) + std::log(sum);
  const auto logprob = [&](int32_t v) {
    return static_cast<float>(static_cast<double>(logits[v]) - log_sum);
  };
  out.token_id = token;
  out.logprob = logprob(token);
  out.draft_logprob = logprob(draft);
  out.top_count = std::min({top_count, vocab, kMaxLogprobs});
  int32_t found = 0;
  for (int32_t v = 0; v < vocab && out.top_count > 0; ++v) {
    if (found == out.top_count && !(logits[v] > logits[out.top_ids[found - 1]])) continue;
    int32_t rank = found < out.top_count ? found++ : found - 1;
    for (; rank > 0 && logits[v] > logits[out.top_ids[rank - 1]]; --rank) {
      out.top_ids[rank] = out.top_ids[rank - 1];
    }
    out.top_ids[rank] = v;
  }
  for (int32_t i = 0; i < out.top_count; ++i) out.top_logprobs[i] = logprob(out.top_ids[i]);
}

FOREDRAFT_WIDE bool RowIsUsable(const float* logits, int32_t vocab) {
  return IsUsable(logits, vocab, LargestOf(logits, vocab));
}

void SampleRow(const SampleParams& p, int32_t r) {
  const int32_t slot = p.index.slots[r];
  if (slot < 0) {
    p.out[r] = 0;
    return;
  }
  const SlotConstants& c = p.slots.constants[slot];
  const int32_t vocab = p.choices();
  const float* logits = p.logits.row(r);
  const uint32_t* const mask = p.masks.Of(r, vocab);
  if (!RowIsUsable(logits, vocab)) {
    p.out[r] = kNoToken;
    return;
  }
  float* scratch = p.scratch + static_cast<int64_t>(r) * p.logits.cols;
  const int32_t position = p.index.positions[r] + 1;
  const AdjustedLogits adjusted(p.slots, slot, position, p.drafts_before(r));
  if (adjusted.applies) {
    WriteAdjusted(adjusted, vocab, logits, scratch);
    logits = scratch;
  }
  if (mask != nullptr && MaskedArgmaxOf(logits, vocab, mask) < 0) {
    p.out[r] = kNoToken;
    return;
  }
  if (c.temperature <= 0.0f) {
    p.out[r] = mask != nullptr ? MaskedArgmaxOf(logits, vocab, mask) : ArgmaxOf(logits, vocab);
  } else {
    for (int32_t v = 0; v < vocab; ++v) {
      const float scaled = logits[v] / c.temperature;
      scratch[v] = scaled == scaled ? scaled : kMinusInfinity;
    }
    for (int32_t v = 0; mask != nullptr && v < vocab; ++v) {
      if (!MaskAllows(mask, v)) scratch[v] = kMinusInfinity;
    }
    p.out[r] = SampleToken(c, scratch, vocab, {c.seed, position});
  }
  if (const int32_t forced = ForcedBehind(p.slots, slot, p.drafts_before(r)); forced != kNoToken) {
    p.out[r] = forced;
  }
  if (p.logprobs != nullptr && c.logprob_count >= 0) {
    const int32_t draft_row = p.draft_row(r);
    WriteLogprobs(p.logits.row(r), p.logits.cols, p.out[r], draft_row < 0 ? p.out[r] : p.ids[draft_row],
                  c.logprob_count, p.logprobs[r]);
  }
}

FOREDRAFT_WIDE int32_t ArgmaxRow(const float* logits, int32_t vocab, const uint32_t* mask) {
  const float largest = LargestOf(logits, vocab);
  if (!IsUsable(logits, vocab, largest)) return kNoToken;
  return mask != nullptr ? MaskedArgmaxOf(logits, vocab, mask) : FirstOf(logits, vocab, largest);
}

}  // namespace

void Argmax(const CpuContext& context, const ArgmaxParams& p) {
  context.pool.ParallelFor(p.logits.rows, p.logits.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      p.out[r] =
          ArgmaxRow(p.logits.row(r), p.logits.cols, p.masks.Of(static_cast<int32_t>(r), p.logits.cols));
    }
  });
}

void Sample(const CpuContext& context, const SampleParams& p) {
  context.pool.ParallelFor(p.index.rows, 16 * static_cast<int64_t>(p.logits.cols),
                           [&](int64_t begin, int64_t end) {
                             for (int64_t r = begin; r < end; ++r) SampleRow(p, static_cast<int32_t>(r));
                           });
}

}  // namespace foredraft::cpu
