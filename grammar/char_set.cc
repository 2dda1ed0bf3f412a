#include "grammar/char_set.h"

#include <algorithm>
#include <map>
#include <utility>

namespace foredraft {
namespace {

constexpr uint32_t kFirstSurrogate = 0xD800;
constexpr uint32_t kLastSurrogate = 0xDFFF;

int SpelledBytes(uint32_t c) { return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4; }

// `first` and `last` are spelled with equally many bytes. Cuts the range where a continuation byte wraps
// around, so that each piece is a product of byte ranges.
void AppendPaths(uint32_t first, uint32_t last, std::vector<BytePath>& paths) {
  std::string low, high;
  AppendCodePoint(first, low);
  AppendCodePoint(last, high);
  for (size_t tail = 1; tail < low.size(); ++tail) {  // continuation bytes after the cut
    const uint32_t mask = (uint32_t{1} << (6 * tail)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      AppendPaths(first, first | mask, paths);
      AppendPaths((first | mask) + 1, last, paths);
      return;
    }
    if ((last & mask) != mask) {
      AppendPaths(first, (last & ~mask) - 1, paths);
      AppendPaths(last & ~mask, last, paths);
      return;
    }
  }
  BytePath path;
  for (size_t i = 0; i < low.size(); ++i) {
    path.push_back(ByteClass::Range(static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i])));
  }
  paths.push_back(std::move(path));
}

}  // namespace

CharSet CharSet::Of(uint32_t first, uint32_t last) {
  CharSet result;
  result.Add(first, last);
  return result;
}

void CharSet::Add(uint32_t first, uint32_t last) {
  if (first <= kLastSurrogate && last >= kFirstSurrogate) {
    if (first < kFirstSurrogate) Add(first, kFirstSurrogate - 1);
    if (last > kLastSurrogate) Add(kLastSurrogate + 1, last);
    return;
  }
  if (first > last) return;
  const auto begin = std::find_if(ranges_.begin(), ranges_.end(),
                                  [&](const Range& range) { return range.last + 1 >= first; });
  auto end = begin;
  for (; end != ranges_.end() && end->first <= last + 1; ++end) {
    first = std::min(first, end->first);
    last = std::max(last, end->last);
  }
  const auto place = ranges_.erase(begin, end);
  ranges_.insert(place, {first, last});
}

void CharSet::Add(const CharSet& other) {
  for (const Range& range : other.ranges_) Add(range.first, range.last);
}

CharSet CharSet::Complement() const {
  CharSet result;
  uint32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) result.Add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) result.Add(next, kMaxCodePoint);
  return result;
}

CharSet CharSet::Intersect(const CharSet& other) const {
  CharSet result;
  for (size_t a = 0, b = 0; a < ranges_.size() && b < other.ranges_.size();) {
    const Range &left = ranges_[a], &right = other.ranges_[b];
    const uint32_t first = std::max(left.first, right.first), last = std::min(left.last, right.last);
    if (first <= last) result.Add(first, last);
    left.last < right.last ? ++a : ++b;
  }
  return result;
}

bool CharSet::Has(uint32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const Range& range) { return range.first <= c && c <= range.last; });
}

std::vector<BytePath> Utf8Paths(const CharSet& set) {
  std::vector<BytePath> pieces;
  constexpr uint32_t kCuts[] = {0, 0x80, 0x800, 0x10000, kMaxCodePoint + 1};
  for (const CharSet::Range& range : set.ranges()) {
    for (int i = 0; i < 4; ++i) {
      const uint32_t first = std::max(range.first, kCuts[i]), last = std::min(range.last, kCuts[i + 1] - 1);
      if (first <= last) AppendPaths(first, last, pieces);
    }
  }
  // Merges pieces that differ in a single byte, for the first byte, then the second, and so on.
  for (size_t place = 0; place < 4; ++place) {
    std::map<BytePath, ByteClass> merged;
    std::vector<BytePath> shorter;
    for (BytePath& piece : pieces) {
      if (place >= piece.size()) {
        shorter.push_back(std::move(piece));
        continue;
      }
      const ByteClass bytes = std::exchange(piece[place], ByteClass());
      merged[std::move(piece)].Add(bytes);
    }
    pieces = std::move(shorter);
    for (auto& [rest, bytes] : merged) {
      pieces.push_back(rest);
      pieces.back()[place] = bytes;
    }
  }
  return pieces;
}

void AppendCodePoint(uint32_t c, std::string& out) {
  const int count = SpelledBytes(c);
  if (count == 1) {
    out.push_back(static_cast<char>(c));
    return;
  }
  constexpr uint8_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  out.push_back(static_cast<char>(kLead[count] | (c >> (6 * (count - 1)))));
  for (int i = count - 2; i >= 0; --i) out.push_back(static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F)));
}

std::optional<uint32_t> TakeCodePoint(std::string_view& text) {
  int state = kUtf8Start;
  uint32_t c = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    state = NextUtf8State(state, byte);
    if (state < 0) return std::nullopt;
    if (i > 0) {
      c = c << 6 | (byte & 0x3F);
    } else {
      c = byte < 0x80 ? byte : byte < 0xE0 ? byte & 0x1F : byte < 0xF0 ? byte & 0x0F : byte & 0x07;
    }
    if (state == kUtf8Start) {
      text.remove_prefix(i + 1);
      return c;
    }
  }
  return std::nullopt;
}

std::optional<std::vector<uint32_t>> CodePoints(std::string_view text) {
  std::vector<uint32_t> result;
  while (!text.empty()) {
    const std::optional<uint32_t> c = TakeCodePoint(text);
    if (!c) return std::nullopt;
    result.push_back(*c);
  }
  return result;
}

int NextUtf8State(int state, uint8_t byte) {
  // Which continuation byte a state wants, and the state after it. States 1, 2 and 7 want one, two and three
  // more of any kind.
  struct Want {
    uint8_t first, last;
    int next;
  };
  static constexpr Want kWants[kUtf8States] = {{},
                                               {0x80, 0xBF, 0},
                                               {0x80, 0xBF, 1},
                                               {0xA0, 0xBF, 1},   // after E0
                                               {0x80, 0x9F, 1},   // after ED: no surrogates
                                               {0x90, 0xBF, 2},   // after F0
                                               {0x80, 0x8F, 2},   // after F4
                                               {0x80, 0xBF, 2}};  // after F1 to F3
  if (state != kUtf8Start) {
    return byte >= kWants[state].first && byte <= kWants[state].last ? kWants[state].next : -1;
  }
  if (byte < 0x80) return kUtf8Start;
  if (byte < 0xC2 || byte > 0xF4) return -1;
  if (byte < 0xE0) return 1;
  if (byte < 0xF0) return byte == 0xE0 ? 3 : byte == 0xED ? 4 : 2;
  return byte == 0xF0 ? 5 : byte == 0xF4 ? 6 : 7;
}

}  // namespace foredraft
