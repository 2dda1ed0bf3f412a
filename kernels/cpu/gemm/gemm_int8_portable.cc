// The tile kernel of rows rounded to 8 bits for any machine: the vectors of int8_tile.h in plain C++, which
// compilers translate to what the baseline has.

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/gemm/int8_tile.h"

namespace foredraft {
namespace {

static_assert(std::endian::native == std::endian::little, "four codes are read as one integer");

struct PlainLanes {
  static constexpr int kWidth = 4;
  static constexpr int kRows = 2;
  static constexpr int kVectors = 4;

  typedef int32_t Words __attribute__((vector_size(kWidth * sizeof(int32_t))));
  typedef float Floats __attribute__((vector_size(kWidth * sizeof(float))));
  using Sums = Words;

  template <class T>
  static T Read(const void* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }

  static void Fetch(const unsigned char*) {}
  static Words Load(const unsigned char* words) { return Read<Words>(words); }
  static Words BroadcastWord(const unsigned char* four) { return Words{} + Read<int32_t>(four); }

  static Words LowNibbles(const Words& words) { return words & 0x0f0f0f0f; }
  static Words HighNibbles(const Words& words) { return (words >> 4) & 0x0f0f0f0f; }
  [[gnu::noinline]] static Words LookUp(const Words& nibbles) {
    constexpr uint8_t kBytes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    uint8_t bytes[sizeof(Words)];
    std::memcpy(bytes, &nibbles, sizeof(bytes));
    for (uint8_t& byte : bytes) byte = kBytes[byte];
    return Read<Words>(bytes);
  }

  static Sums Start(const unsigned char* start) { return BroadcastWord(start + 4); }
  [[gnu::noinline]] static Sums Dot(Sums sums, const Words& bytes, const Words& x) {
    for (int shift = 0; shift < 32; shift += 8) {
      sums += ((bytes >> shift) & 0xff) * ((x << (24 - shift)) >> 24);
    }
    return sums;
  }
  static Words Widen(const Sums& sums) { return sums; }
  static Words Add(const Words& a, const Words& b) { return a + b; }

  static Floats LoadFloats(const float* floats) { return Read<Floats>(floats); }
  static void StoreFloats(float* floats, const Floats& value) { std::memcpy(floats, &value, sizeof(value)); }
  [[gnu::noinline]] static Floats MultiplyAdd(const Floats& a, const Floats& b, Floats c) {
    for (int lane = 0; lane < kWidth; ++lane) c[lane] = std::fma(a[lane], b[lane], c[lane]);
    return c;
  }
  static Floats Scaled(const Words& integers, const unsigned char* scale) {
    return __builtin_convertvector(integers, Floats) * Read<float>(scale);
  }
  static Floats LoadBf16(const unsigned char* bits) {
    Words words{};
    for (int lane = 0; lane < kWidth; ++lane) words[lane] = Read<uint16_t>(bits + 2 * lane) << 16;
    return std::bit_cast<Floats>(words);
  }
  static Floats LoadE4m3(const unsigned char* bits) {
    Words words{};
    for (int lane = 0; lane < kWidth; ++lane) words[lane] = bits[lane] << 20;
    return std::bit_cast<Floats>(words) * 0x1p120f;
  }
};

}  // namespace

void GemmInt8Portable(const GemmTileArgs& args, Int8Codes codes) { MultiplyInt8<PlainLanes>(args, codes); }

}  // namespace foredraft
