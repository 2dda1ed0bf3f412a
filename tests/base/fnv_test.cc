#include "base/fnv.h"

#include "gtest/gtest.h"

namespace foredraft {
namespace {

// Values of the algorithm's authors.
static_assert(Fnv1a("") == 0xcbf29ce484222325u);
static_assert(Fnv1a("a") == 0xaf63dc4c8601ec8cu);
static_assert(Fnv1a("foobar") == 0x85944171f73967e8u);

TEST(Fnv1a, GoesOnFromAnEarlierHash) { EXPECT_EQ(Fnv1a("bar", Fnv1a("foo")), Fnv1a("foobar")); }

TEST(Fnv1a, TakesBytesAboveAscii) { EXPECT_EQ(Fnv1a("\xff"), 0xaf64724c8602eb6eu); }

}  // namespace
}  // namespace foredraft
