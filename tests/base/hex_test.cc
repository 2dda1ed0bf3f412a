#include "base/hex.h"

#include <gmock/gmock.h>

#include <array>

namespace foredraft {
namespace {

using ::testing::ElementsAre;

TEST(ReadHex, ReadsDigitsOfEitherCase) {
  std::array<unsigned char, 3> bytes;
  ASSERT_TRUE(ReadHex("00fFa9", bytes));
  EXPECT_THAT(bytes, ElementsAre(0x00, 0xff, 0xa9));
  EXPECT_TRUE(ReadHex("", {}));
}

TEST(ReadHex, RefusesOtherLengthsAndCharacters) {
  std::array<unsigned char, 2> bytes;
  for (const char* hex : {"", "00f", "00ff0", "00ff00", "00fg", "0xff", "+0ff", "-1ff", " 0ff", "00f "}) {
    EXPECT_FALSE(ReadHex(hex, bytes)) << hex;
  }
}

}  // namespace
}  // namespace foredraft
