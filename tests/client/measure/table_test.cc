#include "client/measure/table.h"

#include <gtest/gtest.h>

namespace foredraft {
namespace {

Table Example() {
  Table table({"K", "tok/s"});
  table.Add({"0", "1,037.4"});
  table.Add({"baseline", "9.9"});
  return table;
}

TEST(Table, AlignsTheFirstColumnLeftAndTheOthersRight) {
  EXPECT_EQ(Example().Text(),
            "K           tok/s\n"
            "0         1,037.4\n"
            "baseline      9.9\n");
}

TEST(Table, IsAlsoMarkdown) {
  EXPECT_EQ(Example().Markdown(),
            "| K | tok/s |\n"
            "|---|---|\n"
            "| 0 | 1,037.4 |\n"
            "| baseline | 9.9 |\n");
}

}  // namespace
}  // namespace foredraft
