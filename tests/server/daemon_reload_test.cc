// What a reload is refused before the model is loaded.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/daemon.h"

namespace foredraft {
namespace {

using testing::HasSubstr;

// abacus, whose tokenizer has no added token "</think>" here.
std::string HalvedModel() {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "daemon_reload_test";
  std::filesystem::remove_all(dir);
  std::filesystem::copy("deploy/models/abacus", dir, std::filesystem::copy_options::recursive);
  std::ifstream in(dir / "tokenizer.json");
  std::string tokenizer{std::istreambuf_iterator<char>(in), {}};
  const std::string mark = "</think>";
  for (size_t at = 0; (at = tokenizer.find(mark, at)) != std::string::npos;) tokenizer[at + 2] = 'x';
  std::ofstream(dir / "tokenizer.json") << tokenizer;
  return dir.string();
}

class ReloadsWhileLoading : public StartObserver {
 public:
  explicit ReloadsWhileLoading(Daemon& daemon) : daemon_(daemon) {}
  void ModelKnown(const Config&, const ModelSummary&) override { result_ = daemon_.Reload().status(); }
  const absl::Status& result() const { return result_; }

 private:
  Daemon& daemon_;
  absl::Status result_;
};

TEST(DaemonReload, RefusesHalfAThoughtAlsoBeforeTheModelIsLoaded) {
  const std::string head = absl::StrCat(
      "model: ", HalvedModel(),
      "\nserver: {grpc_address: '127.0.0.1:0', metrics_address: '127.0.0.1:0', admin_address: none}\n"
      "max_seq_len: 512\nmax_batch_size: 1\nkv_cache_config: {max_tokens: 1024}\n"
      "speculative_config: {max_draft_len: 1");
  const std::string whole = head + ", end_thinking_phase_token: 9}\n", half = head + "}\n";
  std::string file = whole;
  const auto read = [&file] {
    return ParseConfig({.file = "f.yaml", .text = file, .environment = {}, .overrides = {}});
  };
  auto loaded = read();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  auto resolved = ResolveConfig(*std::move(loaded));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  auto daemon = Daemon::Start(*std::move(resolved), read);
  ASSERT_TRUE(daemon.ok()) << daemon.status();

  EXPECT_TRUE((*daemon)->Reload().ok());
  file = half;
  const absl::Status early = (*daemon)->Reload().status();
  EXPECT_EQ(early.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(early.message()), HasSubstr("changed before the model's tokenizer was read"));

  ReloadsWhileLoading observer(**daemon);
  ASSERT_TRUE((*daemon)->Load(observer).ok());
  EXPECT_THAT(std::string(observer.result().message()), HasSubstr("no added token \"</think>\""));
  EXPECT_THAT(std::string((*daemon)->Reload().status().message()), HasSubstr("no added token \"</think>\""));
  file = whole;
  EXPECT_TRUE((*daemon)->Reload().ok());
  (*daemon)->RequestDrain();
  EXPECT_TRUE((*daemon)->Run().ok());
}

}  // namespace
}  // namespace foredraft
