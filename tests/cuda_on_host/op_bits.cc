// The main function of a binary of op tests: beside what each test checks, all that it reads back from the
// emulated device has the hash in tests/golden/op_bits.golden.json. It shows that a change of the kernels or
// of their host side keeps every bit. It follows that the results are the same in any order of the emulated
// threads, which is another one in each run.

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/fnv.h"
#include "tests/golden/recorded_hashes.h"
#include "tests/ops/op_rig.h"

namespace foredraft {
namespace {

RecordedHashes& Golden() {
  static auto* const golden = new RecordedHashes("tests/golden/op_bits.golden.json");
  return *golden;
}

// Hashes are recorded by binary and by device: other GPUs have kernels of their own.
std::string& Group() {
  static auto* const group = new std::string;
  return *group;
}

uint64_t test_hash = kFnvOffset;  // of what the running test has read back

class OpBits : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo&) override { test_hash = kFnvOffset; }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (test_hash == kFnvOffset || test.result()->Failed() || !Golden().Has(Group())) return;
    Golden().Expect(Group(), test.test_suite_name(), test.name(), test_hash);
  }
};

TEST(RecordedOpBits, AreOfTestsThatThereAre) {
  ASSERT_TRUE(Golden().Has(Group())) << Group() << ": not recorded";
  const ::testing::UnitTest& binary = *::testing::UnitTest::GetInstance();
  std::set<std::string> suites;
  for (int i = 0; i < binary.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *binary.GetTestSuite(i);
    suites.insert(suite.name());
    std::set<std::string> tests;
    for (int j = 0; j < suite.total_test_count(); ++j) tests.insert(suite.GetTestInfo(j)->name());
    Golden().ExpectNoOthers({Group(), suite.name()}, tests);
  }
  Golden().ExpectNoOthers({Group()}, suites);
}

int RunTests(int argc, char** argv) {
  const auto device = CreateDevice(TestBackend(), {});
  CHECK(device.ok()) << device.status().ToString();
  Group() = absl::StrCat(std::filesystem::path(argv[0]).filename().string(), ", ", (*device)->name());
  on_read_back = [](std::string_view bytes) { test_hash = Fnv1a(bytes, test_hash); };
  ::testing::UnitTest::GetInstance()->listeners().Append(new OpBits);
  return Golden().RunAllTests(argc, argv);
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) { return foredraft::RunTests(argc, argv); }
