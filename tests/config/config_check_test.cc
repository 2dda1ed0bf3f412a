#include "config/config_check.h"

#include "gtest/gtest.h"

namespace foredraft {
namespace {

TEST(IsLoopback, ParsesTheAddress) {
  for (const char* address : {"127.0.0.1:1", "127.9.8.7:65535", "localhost:50051", "[::1]:50051"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address :
       {"127.0.0.1.evil.com:1", "127.evil:1", "localhost.evil.com:1", "[::1].evil:1", "[::2]:1", "0.0.0.0:1",
        "128.0.0.1:1", "[::ffff:127.0.0.1]x:1", ":1", "127.0.0.1", "unix:/tmp/socket"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(IsLocal, TakesUnixSocketsToo) {
  EXPECT_TRUE(IsLocal("unix:/tmp/s"));
  EXPECT_TRUE(IsLocal("127.0.0.1:1"));
  EXPECT_FALSE(IsLocal("127.0.0.1.example.com:1"));
}

}  // namespace
}  // namespace foredraft
