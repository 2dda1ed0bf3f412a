#include "scheduler/prefill_pace.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"

namespace foredraft {

PrefillPace::PrefillPace(int32_t max_num_tokens, double seconds)
    : max_num_tokens_(max_num_tokens), seconds_(seconds) {
  CHECK_GT(max_num_tokens, 0);
  CHECK_GE(seconds, 0);
}

int PrefillPace::CellOf(double position) {
  return std::bit_width(static_cast<uint32_t>(std::max(position, kNear))) - 1;
}

int32_t PrefillPace::Room(const PrefillWork& planned, int32_t first, int32_t wanted) const {
  const int32_t most = std::min(wanted, max_num_tokens_ - planned.tokens);
  if (most <= 0) return 0;
  if (seconds_ == 0) return most;
  const double left =
      seconds_ - (planned.tokens == 0 ? 0 : planned.tokens * TokenSeconds(planned.mean_position()));
  const auto fits = [&](int32_t count) { return count * TokenSeconds(first + count / 2.0) <= left; };
  if (fits(most)) return most;
  const int32_t least = std::clamp(kLeastTokens - planned.tokens, 0, most);
  // Whole units of kLeastTokens: products of odd sizes are no faster, and a rough bound needs no better.
  int32_t units = 0, too_many = most / kLeastTokens + 1;
  while (too_many - units > 1) {
    const int32_t middle = (units + too_many) / 2;
    (fits(middle * kLeastTokens) ? units : too_many) = middle;
  }
  return std::max(least, units * kLeastTokens);
}

void PrefillPace::Observe(const PrefillWork& work, double seconds) {
  if (work.tokens < std::min(kLeastTokens, max_num_tokens_)) return;
  const double position = work.mean_position();
  cells_[CellOf(position)] = {.position = position, .token_seconds = seconds / work.tokens, .known = true};
}

double PrefillPace::TokenSeconds(double position) const {
  const int own = CellOf(position);
  for (int i = own; i >= 0; --i) {
    const Cell& cell = cells_[i];
    // A token's cost is linear in its position.
    if (cell.known) return cell.token_seconds * std::max(1.0, (position + kNear) / (cell.position + kNear));
  }
  for (int i = own + 1; i < kCells; ++i) {
    if (cells_[i].known) return cells_[i].token_seconds;
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace foredraft
