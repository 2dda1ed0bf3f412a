#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>

namespace foredraft {

// A set of byte values. A plain value.
class ByteClass {
 public:
  constexpr ByteClass() = default;
  static constexpr ByteClass Of(uint8_t byte) { return Range(byte, byte); }
  static constexpr ByteClass Range(int first, int last) {
    ByteClass result;
    result.AddRange(first, last);
    return result;
  }
  constexpr void Add(int byte) { words_[byte >> 6] |= uint64_t{1} << (byte & 63); }
  constexpr void AddRange(int first, int last) {
    for (int byte = first; byte <= last; ++byte) Add(byte);
  }
  constexpr void Add(const ByteClass& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
  }
  constexpr void Keep(const ByteClass& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] &= other.words_[w];
  }
  constexpr void Remove(const ByteClass& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] &= ~other.words_[w];
  }
  constexpr bool Has(int byte) const { return words_[byte >> 6] >> (byte & 63) & 1; }
  constexpr bool Meets(const ByteClass& other) const {
    for (size_t w = 0; w < words_.size(); ++w) {
      if ((words_[w] & other.words_[w]) != 0) return true;
    }
    return false;
  }
  constexpr int count() const {
    int count = 0;
    for (const uint64_t word : words_) count += std::popcount(word);
    return count;
  }
  constexpr bool is_empty() const { return (words_[0] | words_[1] | words_[2] | words_[3]) == 0; }
  // The lowest byte; the set must not be empty.
  constexpr int first() const {
    int w = 0;
    while (words_[w] == 0) ++w;
    return w * 64 + std::countr_zero(words_[w]);
  }

  friend constexpr auto operator<=>(const ByteClass&, const ByteClass&) = default;
  template <class H>
  friend H AbslHashValue(H h, const ByteClass& bytes) {
    return H::combine(std::move(h), bytes.words_);
  }

 private:
  std::array<uint64_t, 4> words_{};
};

}  // namespace foredraft
