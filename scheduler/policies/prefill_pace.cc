#include "scheduler/policies/prefill_pace.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace foredraft {

PrefillPace::PrefillPace(int32_t max_num_tokens) : max_num_tokens_(max_num_tokens) {
  CHECK_GT(max_num_tokens, 0);
}

int PrefillPace::CellOf(double position) {
  return std::bit_width(static_cast<uint32_t>(std::max(position, kNear))) - 1;
}

int PrefillPace::SizeOf(double tokens) {
  const int size = std::bit_width(static_cast<uint32_t>(tokens / kLeastTokens)) - 1;
  return std::clamp(size, 0, kSizes - 1);
}

int32_t PrefillPace::Room(const PrefillWork& planned, int32_t first, int32_t wanted, double seconds) const {
  CHECK_GT(seconds, 0);
  const int32_t most = std::min(wanted, max_num_tokens_ - planned.tokens);
  if (most <= 0) return 0;
  if (seconds == kNoLimit) return most;
  const auto fits = [&](int32_t count) {
    PrefillWork work = planned;
    work.Add(first, count);
    return Seconds(work) <= seconds;
  };
  if (fits(most)) return most;
  const int32_t least = std::clamp(kLeastTokens - planned.tokens, 0, most);
  // The search is in whole units of kLeastTokens: products of odd sizes are no faster, and the bound is rough
  // anyway.
  int32_t units = 0, too_many = most / kLeastTokens + 1;
  while (too_many - units > 1) {
    const int32_t middle = (units + too_many) / 2;
    (fits(middle * kLeastTokens) ? units : too_many) = middle;
  }
  return std::max(least, units * kLeastTokens);
}

void PrefillPace::Observe(const PrefillWork& work, double seconds) {
  if (work.tokens < std::min(kLeastTokens, max_num_tokens_)) return;
  const Point seen{.position = work.mean_position(), .tokens = double(work.tokens), .seconds = seconds};
  Cell& cell = cells_[CellOf(seen.position)];
  const int size = SizeOf(seen.tokens);
  cell[size] = seen;
  // More tokens take longer, but share the reading of the weights. A time of another size that contradicts
  // this is out of date.
  for (int i = 0; i < kSizes; ++i) {
    const double alike = seconds * cell[i].tokens / seen.tokens;
    if (i != size)
      cell[i].seconds = std::clamp(cell[i].seconds, std::min(alike, seconds), std::max(alike, seconds));
  }
}

// Between two iterations the time is linear in the tokens: reading the weights takes a fixed part, and each
// token its own. Beyond the largest iteration a token takes at most as long as there; below the smallest
// iteration it takes at least as long as there.
PrefillPace::Estimate PrefillPace::InCell(const Cell& cell, double position, double tokens) {
  const Point *below = nullptr, *above = nullptr;
  for (const Point& point : cell) {
    if (point.tokens == 0) continue;
    if (point.tokens <= tokens) below = &point;
    if (point.tokens >= tokens && above == nullptr) above = &point;
  }
  // A token's cost is linear in its position.
  const auto scaled = [position](const Point& point) {
    return point.seconds * std::max(1.0, (position + kNear) / (point.position + kNear));
  };
  if (below == nullptr && above == nullptr) return {};
  if (below == nullptr) return {.seconds = scaled(*above) * tokens / above->tokens, .known = true};
  double seconds = scaled(*below) * tokens / below->tokens;
  if (above != nullptr && above->tokens > below->tokens) {
    const double part = (tokens - below->tokens) / (above->tokens - below->tokens);
    seconds = std::lerp(scaled(*below), scaled(*above), part);
  }
  return {.seconds = seconds, .known = true, .is_bound = true};
}

double PrefillPace::Seconds(const PrefillWork& work) const {
  if (work.tokens == 0) return 0;
  const double position = work.mean_position();
  const int own = CellOf(position);
  Estimate nearest;
  // A cell may have only larger iterations. Then the cell before it may have a bound; cells further away are
  // too rough.
  for (int i = own; i >= 0 && !nearest.is_bound && (!nearest.known || i >= own - 1); --i) {
    const Estimate here = InCell(cells_[i], position, work.tokens);
    if (!here.known || (nearest.known && !here.is_bound)) continue;
    nearest = {.seconds = std::max(nearest.seconds, here.seconds), .known = true, .is_bound = here.is_bound};
  }
  for (int i = own + 1; i < kCells && !nearest.known; ++i) nearest = InCell(cells_[i], position, work.tokens);
  return nearest.known ? nearest.seconds : kNoLimit;
}

}  // namespace foredraft
