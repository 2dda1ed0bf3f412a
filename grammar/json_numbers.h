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
  // The integer below 2^31, or nothing.
  std::optional<int32_t> ToInt() const;
  // k where this is 10^-k with k > 0, or nothing.
  std::optional<int> PlacesOfUnit() const;
};

struct NumberRange {
  static constexpr int kMaxWholeDigits = 19;
  static constexpr int kMaxPlaces = 20;
  static constexpr int kMaxDivisor = 1'000;

  bool is_integer = false;
  bool is_fraction = false;  // no integers
  std::optional<Decimal> min, max;
  bool excludes_min = false, excludes_max = false;
  int32_t divisor = 0;      // the number is a multiple of it; 0 = of anything
  int places = kMaxPlaces;  // at most so many digits of a fraction
  void RaiseMin(const Decimal& bound, bool is_exclusive);
  void LowerMax(const Decimal& bound, bool is_exclusive);
  bool Has(const Decimal& number) const;
  // Whether no number is in both.
  static bool AreDisjoint(const NumberRange& a, const NumberRange& b);
};

// -?(0|[1-9][0-9]{0,18}), for a number also a fraction of up to 20 digits and, without bounds, an exponent of
// up to 3. INVALID_ARGUMENT: more than max_product_states.
absl::StatusOr<NodeId> AddNumbers(Ir& ir, const NumberRange& range);

}  // namespace foredraft
