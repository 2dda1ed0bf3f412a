// foredraft info: what it says of a checkpoint.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/e2e/daemon_fixture.h"

namespace foredraft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(InfoCommand, DescribesTheCheckpoint) {
  const RunResult result = Foredraft({"info", "--checkpoint", kModel});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("DeepseekV3ForCausalLM"), HasSubstr("MTP modules          3"),
                                HasSubstr("KV bytes per token"), HasSubstr("in fp8"),
                                HasSubstr("serve                takes it"), HasSubstr("this machine")));
}

// A copy of the model with scales of another server's cache in FP8.
TEST(InfoCommand, SaysThatScalesOfTheCacheArePassedOver) {
  const std::string dir = TestDir("cache_scales");
  std::filesystem::copy(kModel, dir, std::filesystem::copy_options::recursive);
  const std::string file = dir + "/model.safetensors";
  std::ifstream in(file, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  std::string header = bytes.substr(8, header_bytes), data = bytes.substr(8 + header_bytes);
  for (const char* name : {"k_proj.k_scale", "v_proj.v_scale"}) {
    const std::string from = std::to_string(data.size()), to = std::to_string(data.size() + 4);
    header.insert(header.rfind('}'), R"(,"model.layers.0.self_attn.)" + std::string(name) +
                                         R"(":{"dtype":"F32","shape":[],"data_offsets":[)" + from + "," + to +
                                         "]}");
    data += std::string("\0\0\x80\x3f", 4);
  }
  header_bytes = header.size();
  std::memcpy(bytes.data(), &header_bytes, sizeof(header_bytes));
  WriteText(file, bytes.substr(0, 8) + header + data);
  const RunResult result = Foredraft({"info", "--checkpoint", dir});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("k and v scales       2, passed over: kv_cache_config.dtype alone decides"));
  EXPECT_THAT(Foredraft({"info", "--checkpoint", kModel}).out, testing::Not(HasSubstr("passed over")));
}

TEST(InfoCommand, SaysWhatServeWouldRefuse) {
  const std::filesystem::path dir = TestDir("without_tokenizer");
  std::filesystem::copy("tests/golden/checkpoints/grouped", dir, std::filesystem::copy_options::recursive);
  std::filesystem::remove(dir / "tokenizer.json");
  const RunResult result = Foredraft({"info", "--checkpoint", dir.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("serve                refuses it: "), HasSubstr("tokenizer.json")));
}

}  // namespace
}  // namespace foredraft
