// Runs a fuzz target over its committed corpus: what a fuzzer once found stays found, with any compiler.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#ifdef FOREDRAFT_PROTO_CORPUS
#include "tests/fuzz/proto_input.h"
#endif

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

TEST(Corpus, EveryInputPasses) {
  std::vector<std::filesystem::path> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(FOREDRAFT_CORPUS))
    inputs.push_back(entry.path());
  std::sort(inputs.begin(), inputs.end());
  ASSERT_FALSE(inputs.empty());
  for (const std::filesystem::path& path : inputs) {
    SCOPED_TRACE(path.string());
    std::ifstream file(path, std::ios::binary);
    ASSERT_TRUE(file.good());
    const std::string input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
#ifdef FOREDRAFT_PROTO_CORPUS
    EXPECT_NE(foredraft::ParseProtoInput(input), nullptr) << "not a message of this target: it tries nothing";
#endif
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()), 0);
    // Every prefix too, up to a bound: cut input is what a broken file or stream looks like.
    for (size_t size = 0; size < std::min<size_t>(input.size(), 64); ++size) {
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), size);
    }
  }
}

}  // namespace
