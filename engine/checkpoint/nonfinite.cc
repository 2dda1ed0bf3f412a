#include "engine/checkpoint/nonfinite.h"

#include <cstring>

#include "kernels/cpu/common/vector_math.h"

namespace foredraft {
namespace {

// Elements of 1, 2, 4 or 8 bytes, handled eight bytes at a time.
struct Format {
  std::string_view dtype;
  int bytes;
  uint64_t exponent;  // of one element: all its bits set = not finite
};

constexpr Format kFormats[] = {
    {"F32", 4, 0x7f800000}, {"BF16", 2, 0x7f80},  {"F16", 2, 0x7c00},
    {"F8_E4M3", 1, 0x7f},   {"F8_E5M2", 1, 0x7c}, {"F64", 8, 0x7ff0000000000000},
    {"F8_E8M0", 1, 0xff},
};

// A word filled with copies of the element.
constexpr uint64_t Repeat(uint64_t element, int bytes) {
  uint64_t word = 0;
  for (int shift = 0; shift < 64; shift += 8 * bytes) word |= element << shift;
  return word;
}

// Adding the exponent's lowest bit to a full exponent carries into the bit above it, the element's highest.
// E8M0 has no bit above the exponent, so the exponent's own highest bit must be set, too.
class Detector {
 public:
  explicit constexpr Detector(const Format& format)
      : high_(Repeat(uint64_t{1} << (8 * format.bytes - 1), format.bytes)),
        mask_(Repeat(format.exponent, format.bytes) & ~high_),
        one_(Repeat(format.exponent & ~(format.exponent << 1), format.bytes)),
        needs_high_(Repeat(format.exponent, format.bytes) & high_) {}

  // Not 0 if an element of the word is not finite.
  constexpr uint64_t operator()(uint64_t word) const {
    return ((word & mask_) + one_) & high_ & (word | ~needs_high_);
  }

 private:
  uint64_t high_;
  uint64_t mask_;
  uint64_t one_;
  uint64_t needs_high_;
};

constexpr int kWords = 8;  // tested together
constexpr int64_t kGroupBytes = kWords * sizeof(uint64_t);

// The offset of the first group of kGroupBytes that has an element that is not finite; without one, the
// offset of the rest after the last whole group.
FOREDRAFT_WIDE int64_t SkipFinite(const char* data, int64_t bytes, const Detector& detector) {
  int64_t offset = 0;
  for (; offset + kGroupBytes <= bytes; offset += kGroupBytes) {
    uint64_t words[kWords];
    std::memcpy(words, data + offset, sizeof words);
    uint64_t found[kWords];
    for (int i = 0; i < kWords; ++i) found[i] = detector(words[i]);
    uint64_t any = 0;
    for (int i = 0; i < kWords; ++i) any |= found[i];
    if (any != 0) break;
  }
  return offset;
}

}  // namespace

std::optional<int64_t> FindNonfinite(std::string_view dtype, const void* data, int64_t bytes) {
  const Format* format = nullptr;
  for (const Format& known : kFormats) {
    if (known.dtype == dtype) format = &known;
  }
  if (format == nullptr) return std::nullopt;
  const Detector detector(*format);
  const char* const first = static_cast<const char*>(data);
  for (int64_t offset = SkipFinite(first, bytes, detector); offset < bytes; offset += format->bytes) {
    uint64_t element = 0;  // zeros in the other places are finite
    std::memcpy(&element, first + offset, static_cast<size_t>(format->bytes));
    if (detector(element) != 0) return offset / format->bytes;
  }
  return std::nullopt;
}

}  // namespace foredraft
