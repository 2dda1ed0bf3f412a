#pragma once

// Numbers of JSON between bounds, as digit automata over exact decimals.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "grammar/ir.h"

namespace foredraft {

// An exact decimal. A plain value.
struct Decimal {
  bool is_negative = false;
  std::string whole;     // without leading zeros: empty for 0
  std::string fraction;  // without trailing zeros

  // INVALID_ARGUMENT for exponents beyond 400. `text` is a JSON number.
  static absl::StatusOr<Decimal> Parse(std::string_view text);
  bool is_integer() const { return fraction.empty(); }
  // -1, 0 or 1.
  static int Compare(const Decimal& a, const Decimal& b);
  // The number, if it is an integer of magnitude below 2^31; otherwise nothing.
  std::optional<int32_t> ToInt() const;
};

struct NumberRange {
  static constexpr int kMaxWholeDigits = 19;
  static constexpr int kMaxPlaces = 20;
  static constexpr int64_t kMaxDivisor = 1'000'000'000;

  bool is_integer = false;
  bool is_fraction = false;  // no integers
  std::optional<Decimal> min, max;
  bool excludes_min = false, excludes_max = false;
  // The number is a multiple of divisor / 10^places, with at most `places` fraction digits. If places > 0,
  // 10 does not divide the divisor.
  int64_t divisor = 1;
  int places = kMaxPlaces;
  void RaiseMin(const Decimal& bound, bool is_exclusive);
  void LowerMax(const Decimal& bound, bool is_exclusive);
  // Keeps only those numbers that are also multiples of `multiple`, which is above 0. False: not supported,
  // because the divisor would be above kMaxDivisor.
  bool KeepMultiples(const Decimal& multiple);
  bool Has(const Decimal& number) const;
  // True: their bounds alone exclude that a number is in both. False: not known.
  static bool AreDisjoint(const NumberRange& a, const NumberRange& b);
};

// Matches -?(0|[1-9][0-9]{0,18}); unless is_integer also a fraction of up to 20 digits and, without bounds,
// an exponent of up to 3 digits. INVALID_ARGUMENT: more than max_product_states.
absl::StatusOr<NodeId> AddNumbers(Ir& ir, const NumberRange& range);

}  // namespace foredraft
