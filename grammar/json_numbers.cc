#include "grammar/json_numbers.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

constexpr int kMaxExponent = 400;

int Sign(int value) { return (value > 0) - (value < 0); }

int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int order = a.whole.compare(b.whole); order != 0) return Sign(order);
  return Sign(a.fraction.compare(b.fraction));  // no trailing zeros, so a prefix is smaller
}

}  // namespace

absl::StatusOr<Decimal> Decimal::Parse(std::string_view text) {
  Decimal result;
  const std::string spelled(text);
  if (text.starts_with("-")) {
    result.is_negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string digits(text.substr(e + 1));
    if (digits.starts_with("+")) digits.erase(0, 1);
    if (!absl::SimpleAtoi(digits, &exponent) || std::abs(exponent) > kMaxExponent) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: allowed exponents from -%d to %d", spelled, kMaxExponent, kMaxExponent));
    }
    text = text.substr(0, e);
  }
  const size_t point = text.find('.');
  std::string digits(text.substr(0, point));
  int64_t places = static_cast<int64_t>(digits.size()) + exponent;  // digits before the point
  if (point != std::string_view::npos) digits += text.substr(point + 1);
  if (places < 0) {
    digits.insert(0, static_cast<size_t>(-places), '0');
    places = 0;
  }
  if (places > static_cast<int64_t>(digits.size())) digits.resize(static_cast<size_t>(places), '0');
  result.whole = digits.substr(0, static_cast<size_t>(places));
  result.fraction = digits.substr(static_cast<size_t>(places));
  result.whole.erase(0, std::min(result.whole.find_first_not_of('0'), result.whole.size()));
  result.fraction.erase(result.fraction.find_last_not_of('0') + 1);
  if (result.whole.empty() && result.fraction.empty()) result.is_negative = false;
  return result;
}

int Decimal::Compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  return a.is_negative ? CompareMagnitudes(b, a) : CompareMagnitudes(a, b);
}

std::optional<int32_t> Decimal::ToInt() const {
  int32_t value = 0;
  if (!is_integer()) return std::nullopt;
  if (whole.empty()) return 0;
  if (!absl::SimpleAtoi(whole, &value)) return std::nullopt;
  return is_negative ? -value : value;
}

void NumberRange::RaiseMin(const Decimal& bound, bool is_exclusive) {
  const int order = min ? Decimal::Compare(bound, *min) : 1;
  if (order > 0 || (order == 0 && is_exclusive)) {
    min = bound;
    excludes_min = is_exclusive;
  }
}

void NumberRange::LowerMax(const Decimal& bound, bool is_exclusive) {
  const int order = max ? Decimal::Compare(bound, *max) : -1;
  if (order < 0 || (order == 0 && is_exclusive)) {
    max = bound;
    excludes_max = is_exclusive;
  }
}

bool NumberRange::KeepMultiples(const Decimal& multiple) {
  const int other_places = static_cast<int>(multiple.fraction.size());
  int64_t other = 0;
  if (other_places > kMaxPlaces || !absl::SimpleAtoi(multiple.whole + multiple.fraction, &other))
    return false;
  if (divisor == 1 && places == kMaxPlaces) {
    divisor = other;
    places = other_places;
    return divisor <= kMaxDivisor;
  }
  // Both as integers of the same unit.
  int64_t factors[2] = {divisor, other};
  for (int p = places; p < other_places && factors[0] <= kMaxDivisor; ++p) factors[0] *= 10;
  for (int p = other_places; p < places && factors[1] <= kMaxDivisor; ++p) factors[1] *= 10;
  if (std::max(factors[0], factors[1]) > kMaxDivisor) return false;
  divisor = std::lcm(factors[0], factors[1]);
  places = std::max(places, other_places);
  for (; places > 0 && divisor % 10 == 0; --places) divisor /= 10;
  return divisor <= kMaxDivisor;
}

bool NumberRange::Has(const Decimal& number) const {
  if (number.is_integer() ? is_fraction : is_integer) return false;
  if (min && Decimal::Compare(number, *min) < (excludes_min ? 1 : 0)) return false;
  if (max && Decimal::Compare(number, *max) > (excludes_max ? -1 : 0)) return false;
  if (static_cast<int>(number.fraction.size()) > places) return false;
  std::string digits = number.whole + number.fraction;
  digits.append(static_cast<size_t>(places) - number.fraction.size(), '0');
  int64_t remainder = 0;
  for (const char digit : digits) remainder = (remainder * 10 + (digit - '0')) % divisor;
  return remainder == 0;
}

bool NumberRange::AreDisjoint(const NumberRange& a, const NumberRange& b) {
  const auto ends_before = [](const NumberRange& low, const NumberRange& high) {
    if (!low.max || !high.min) return false;
    const int order = Decimal::Compare(*low.max, *high.min);
    return order < 0 || (order == 0 && (low.excludes_max || high.excludes_min));
  };
  return ends_before(a, b) || ends_before(b, a);
}

namespace {

// Numbers of one sign whose magnitude is within bounds. A state has what matters of the digits so far: their
// number, how they compare with the digits of each bound, and their remainder modulo the divisor. The
// divisor's factors of 10 are tested as trailing zeros, which need fewer states than remainders.
class DigitAutomaton {
 public:
  struct Bound {
    std::optional<Decimal> value;  // a magnitude
    bool is_exclusive = false;
  };
  DigitAutomaton(Ir& ir, NodeGraph& graph, const NumberRange& range)
      : ir_(ir), graph_(graph), range_(range), divisor_(range.divisor) {
    for (; divisor_ % 10 == 0; divisor_ /= 10) ++zeros_;
  }

  absl::Status Build(int32_t start, Bound low, Bound high) {
    bounds_ = {std::move(low), std::move(high)};
    states_.clear();
    known_.clear();
    ids_.clear();
    const State none = {kWhole, 0, 0, 0, {0, zeros_}};
    Link(start, '0', Find(none));  // "0" counts as no digit
    for (int digit = 1; digit <= 9; ++digit) Link(start, '0' + digit, Find(AfterDigit(none, digit)));
    for (size_t i = 0; i < states_.size(); ++i) {
      AddEdges(i, static_cast<int32_t>(i) != 0);
      if (static_cast<int>(states_.size()) > ir_.limits().max_product_states) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "bounds and multipleOf together need more than %d states", ir_.limits().max_product_states));
      }
      RETURN_IF_ERROR(ir_.status());
    }
    return absl::OkStatus();
  }

 private:
  enum Phase { kWhole, kPoint, kFraction };
  // The digits modulo divisor_, without their last `zeros` digits: trailing zeros, of which up to zeros_ are
  // counted.
  struct Remainder {
    int64_t value;
    int zeros;
    friend auto operator<=>(const Remainder&, const Remainder&) = default;
  };
  struct State {
    int phase, count, low, high;  // low, high: -1, 0, 1: order against the bounds
    Remainder remainder;
    bool has_fraction = false;  // a digit other than 0 after the point
    friend auto operator<=>(const State&, const State&) = default;
  };

  int32_t Find(const State& state) {
    const auto [place, is_new] = known_.try_emplace(state, static_cast<int32_t>(states_.size()));
    if (is_new) {
      states_.push_back(state);
      ids_.push_back(graph_.AddState());
      graph_.states[ids_.back()].accepts = state.phase != kPoint && Accepts(state);
    }
    return place->second;
  }
  void Link(int32_t from, int byte, int32_t to) {
    graph_.AddEdge(from, ir_.Bytes(ByteClass::Of(static_cast<uint8_t>(byte))), ids_[to]);
  }

  int CompareDigit(int order, const std::string& digits, int index, int digit) const {
    if (order != 0) return order;
    const int other = index < static_cast<int>(digits.size()) ? digits[index] - '0' : 0;
    return Sign(digit - other);
  }
  Remainder AfterDigit(Remainder remainder, int digit) const {
    if (digit == 0 && remainder.zeros < zeros_) return {remainder.value, remainder.zeros + 1};
    const int places = digit == 0 ? 1 : remainder.zeros + 1;
    for (int place = 0; place < places; ++place) remainder.value = remainder.value * 10 % divisor_;
    return {(remainder.value + digit) % divisor_, digit == 0 ? zeros_ : 0};
  }
  State AfterDigit(State state, int digit) const {
    const auto compare = [&](int order, const Bound& bound) {
      if (!bound.value) return 0;
      if (state.phase != kWhole) return CompareDigit(order, bound.value->fraction, state.count, digit);
      if (state.count >= static_cast<int>(bound.value->whole.size())) return order;  // longer: WholeOrder
      return CompareDigit(order, bound.value->whole, state.count, digit);
    };
    state.low = compare(state.low, bounds_[0]);
    state.high = compare(state.high, bounds_[1]);
    ++state.count;
    state.remainder = AfterDigit(state.remainder, digit);
    if (state.phase == kPoint) state.phase = kFraction;
    // Where integers may come as well, the digits after the point make no difference.
    if (state.phase == kFraction && range_.is_fraction && digit > 0) state.has_fraction = true;
    return state;
  }
  // How the whole part compares once it is complete.
  int WholeOrder(int order, int count, const Bound& bound) const {
    if (!bound.value) return 0;
    const int length = static_cast<int>(bound.value->whole.size());
    return count == length ? order : count < length ? -1 : 1;
  }
  bool Accepts(const State& state) const {
    Remainder remainder = state.remainder;
    const int left = range_.places - (state.phase == kWhole ? 0 : state.count);  // zeros that are not written
    for (int zero = 0; divisor_ > 1 && zero < left; ++zero) remainder = AfterDigit(remainder, 0);
    if (remainder.value != 0 || remainder.zeros < zeros_) return false;
    if (range_.is_fraction && !state.has_fraction) return false;
    int orders[2] = {state.low, state.high};
    for (int b = 0; b < 2; ++b) {
      if (!bounds_[b].value) continue;
      int read = state.count;
      if (state.phase == kWhole) {
        orders[b] = WholeOrder(orders[b], state.count, bounds_[b]);
        read = 0;
      }
      // If the bound has more digits than were read, it is larger.
      if (orders[b] == 0 && read < static_cast<int>(bounds_[b].value->fraction.size())) orders[b] = -1;
    }
    const bool above = !bounds_[0].value || orders[0] > 0 || (orders[0] == 0 && !bounds_[0].is_exclusive);
    const bool below = !bounds_[1].value || orders[1] < 0 || (orders[1] == 0 && !bounds_[1].is_exclusive);
    return above && below;
  }

  void AddEdges(size_t index, bool may_go_on) {
    const State state = states_[index];
    const int32_t from = ids_[index];
    int limit = range_.places;
    if (state.phase == kWhole) {
      limit = NumberRange::kMaxWholeDigits;
      if (bounds_[1].value) limit = std::min(limit, static_cast<int>(bounds_[1].value->whole.size()));
    }
    if (state.phase == kWhole && !range_.is_integer && range_.places > 0) {
      State point = state;
      point.phase = kPoint;
      point.low = WholeOrder(state.low, state.count, bounds_[0]);
      point.high = WholeOrder(state.high, state.count, bounds_[1]);
      point.count = 0;
      Link(from, '.', Find(point));
    }
    if (state.count >= limit || (state.phase == kWhole && !may_go_on)) return;
    ir_.work().Charge(10);
    for (int digit = 0; digit <= 9; ++digit) Link(from, '0' + digit, Find(AfterDigit(state, digit)));
  }

  Ir& ir_;
  NodeGraph& graph_;
  const NumberRange& range_;
  int64_t divisor_;              // without its factors of 10
  int zeros_ = 0;                // how many of them
  std::array<Bound, 2> bounds_;  // low, high
  std::vector<State> states_;
  std::vector<int32_t> ids_;  // of the states, in the graph
  std::map<State, int32_t> known_;
};

NodeId AddUnboundedNumbers(Ir& ir, const NumberRange& range) {
  const NodeId digit = ir.Bytes(ByteClass::Range('0', '9'));
  std::vector<NodeId> parts = {ir.Optional(ir.Literal("-"))};
  parts.push_back(ir.Alternative(
      {ir.Literal("0"), ir.Sequence({ir.Bytes(ByteClass::Range('1', '9')),
                                     ir.Repeat(digit, 0, NumberRange::kMaxWholeDigits - 1)})}));
  if (!range.is_integer && range.places > 0) {
    parts.push_back(ir.Optional(ir.Sequence({ir.Literal("."), ir.Repeat(digit, 1, range.places)})));
  }
  if (!range.is_integer && range.places == NumberRange::kMaxPlaces) {
    ByteClass e = ByteClass::Of('e'), sign = ByteClass::Of('+');
    e.Add('E');
    sign.Add('-');
    parts.push_back(
        ir.Optional(ir.Sequence({ir.Bytes(e), ir.Optional(ir.Bytes(sign)), ir.Repeat(digit, 1, 3)})));
  }
  return ir.Sequence(parts);
}

}  // namespace

absl::StatusOr<NodeId> AddNumbers(Ir& ir, const NumberRange& range) {
  if (!range.min && !range.max && range.divisor == 1 && !range.is_fraction) {
    return AddUnboundedNumbers(ir, range);
  }
  NodeGraph graph;
  const int32_t start = graph.AddState();
  DigitAutomaton automaton(ir, graph, range);
  using Bound = DigitAutomaton::Bound;
  const auto magnitude = [](Decimal value) {
    value.is_negative = false;
    return value;
  };
  const bool max_is_below_zero = range.max && range.max->is_negative;
  const bool min_is_above_zero =
      range.min && !range.min->is_negative && Decimal::Compare(*range.min, Decimal()) > 0;
  if (!max_is_below_zero) {
    Bound low, high;
    if (range.min && !range.min->is_negative) low = {*range.min, range.excludes_min};
    if (range.max) high = {*range.max, range.excludes_max};
    RETURN_IF_ERROR(automaton.Build(start, low, high));
  }
  if (!min_is_above_zero) {
    Bound low, high;
    if (range.max && (max_is_below_zero || Decimal::Compare(*range.max, Decimal()) == 0)) {
      low = {magnitude(*range.max), range.excludes_max};
    }
    if (range.min) high = {magnitude(*range.min), range.excludes_min};
    const int32_t minus = graph.AddState();
    graph.AddEdge(start, ir.Literal("-"), minus);
    RETURN_IF_ERROR(automaton.Build(minus, low, high));
  }
  return ir.Graph(std::move(graph));
}

}  // namespace foredraft
