#pragma once

// Sets of Unicode characters, and how UTF-8 spells them. Surrogates are not characters.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/byte_class.h"

namespace foredraft {

inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;

// A set of characters as sorted ranges that neither overlap nor touch. A plain value.
class CharSet {
 public:
  struct Range {
    uint32_t first, last;
    friend auto operator<=>(const Range&, const Range&) = default;
  };

  CharSet() = default;
  static CharSet Of(uint32_t first, uint32_t last);
  static CharSet Of(uint32_t c) { return Of(c, c); }
  static CharSet All() { return CharSet().Complement(); }

  void Add(uint32_t first, uint32_t last);
  void Add(const CharSet& other);
  CharSet Complement() const;
  CharSet Intersect(const CharSet& other) const;
  CharSet Without(const CharSet& other) const { return Intersect(other.Complement()); }
  bool Has(uint32_t c) const;

  bool is_empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }
  friend auto operator<=>(const CharSet&, const CharSet&) = default;

 private:
  std::vector<Range> ranges_;
};

// A sequence of one to four byte classes.
using BytePath = std::vector<ByteClass>;
// Paths whose union is the UTF-8 of the set. No byte string is in two of them.
std::vector<BytePath> Utf8Paths(const CharSet& set);

void AppendCodePoint(uint32_t c, std::string& out);
// Cuts the first character off `text` and returns it; nothing where `text` does not begin with UTF-8.
std::optional<uint32_t> TakeCodePoint(std::string_view& text);
// The characters of `text`; nothing if it is not UTF-8.
std::optional<std::vector<uint32_t>> CodePoints(std::string_view text);

// The states of a reader of UTF-8 between two bytes; kUtf8Start is between characters.
inline constexpr int kUtf8Start = 0;
inline constexpr int kUtf8States = 8;
// The state after `byte`, or -1 if no valid text continues with it.
int NextUtf8State(int state, uint8_t byte);

}  // namespace foredraft
