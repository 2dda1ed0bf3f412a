#include "ranks/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace foredraft {
namespace {

class ModelHashTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "/model_hash_" + std::to_string(getpid());
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    Write("config.json", "{}");
    Write("model.safetensors", std::string(1 << 20, 'w'));
  }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(dir_ + "/" + name, std::ios::binary | std::ios::trunc) << content;
  }
  std::string Hash() { return ModelHash(dir_).value_or("none"); }

  std::string dir_;
};

TEST_F(ModelHashTest, CoversConfigurationSizesAndWeights) {
  const std::string first = Hash();
  EXPECT_EQ(first.size(), 8u);
  EXPECT_EQ(Hash(), first);
  Write("tokenizer.json", "not part of the hash");
  EXPECT_EQ(Hash(), first);
  Write("config.json", "{ }");
  EXPECT_NE(Hash(), first);
  Write("config.json", "{}");
  Write("model.safetensors", std::string((1 << 20) + 1, 'w'));
  EXPECT_NE(Hash(), first);
  std::string tail(1 << 20, 'w');
  tail.back() = 'x';  // the last sample reaches the end
  Write("model.safetensors", tail);
  EXPECT_NE(Hash(), first);
  Write("model.safetensors", std::string(1 << 20, 'v'));
  EXPECT_NE(Hash(), first);
}

TEST_F(ModelHashTest, NamesAMissingFile) {
  std::filesystem::remove(dir_ + "/config.json");
  EXPECT_THAT(std::string(ModelHash(dir_).status().message()), testing::HasSubstr("config.json"));
}

}  // namespace
}  // namespace foredraft
