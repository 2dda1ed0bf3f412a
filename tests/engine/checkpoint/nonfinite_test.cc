#include "engine/checkpoint/nonfinite.h"

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace foredraft {
namespace {

struct FormatCase {
  const char* dtype;
  int bytes;
  std::vector<uint64_t> finite;     // the largest of either sign, the smallest, zeros
  std::vector<uint64_t> nonfinite;  // infinities and NaN where the format has them
};

const FormatCase kCases[] = {
    {"F32", 4, {0x7f7fffff, 0xff7fffff, 1, 0, 0x80000000}, {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001}},
    {"BF16", 2, {0x7f7f, 0xff7f, 1, 0, 0x8000}, {0x7f80, 0xff80, 0x7fc0, 0xff81, 0xffff}},
    {"F16", 2, {0x7bff, 0xfbff, 1, 0, 0x8000}, {0x7c00, 0xfc00, 0x7e00, 0xffff}},
    {"F64",
     8,
     {0x7fefffffffffffff, 0xffefffffffffffff, 1, 0},
     {0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000}},
    {"F8_E4M3", 1, {0x7e, 0xfe, 1, 0, 0x80}, {0x7f, 0xff}},
    {"F8_E5M2", 1, {0x7b, 0xfb, 1, 0, 0x80}, {0x7c, 0xfc, 0x7d, 0xff}},
    {"F8_E8M0", 1, {0xfe, 0x7f, 0x80, 0}, {0xff}},
};

TEST(FindNonfinite, FindsEveryKindAtEveryPlace) {
  for (const FormatCase& format : kCases) {
    for (const int count : {1, 7, 8, 31, 64, 129, 200}) {
      std::string data;
      for (int i = 0; i < count; ++i) {
        data.append(reinterpret_cast<const char*>(&format.finite[i % format.finite.size()]), format.bytes);
      }
      const auto size = static_cast<int64_t>(data.size());
      EXPECT_EQ(FindNonfinite(format.dtype, data.data(), size), std::nullopt) << format.dtype << " " << count;
      for (int at = 0; at < count; ++at) {
        const uint64_t wrong = format.nonfinite[at % format.nonfinite.size()];
        std::string poisoned = "x" + data;  // not aligned
        std::memcpy(&poisoned[1 + at * format.bytes], &wrong, format.bytes);
        EXPECT_EQ(FindNonfinite(format.dtype, &poisoned[1], size), at) << format.dtype << " " << count;
      }
    }
  }
}

TEST(FindNonfinite, IntegersHaveNone) {
  const std::string data(100, '\xff');
  for (const char* dtype : {"U8", "I8", "I32", "I64", "BOOL"}) {
    EXPECT_EQ(FindNonfinite(dtype, data.data(), 96), std::nullopt) << dtype;
  }
}

}  // namespace
}  // namespace foredraft
