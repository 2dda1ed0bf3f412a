// The engine on each instruction path of the CPU: the same tokens with and without drafts, each draft that of
// a from-scratch computation. same_tokens_test has all settings on the widest path.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"
#include "tests/engine/test_requests.h"
#include "tools/quantize/quantize_checkpoint.h"

namespace foredraft {
namespace {

bool IsFullTier() { return std::getenv("FOREDRAFT_FULL") != nullptr; }

std::vector<Setting> Settings() {
  std::vector<Setting> settings = {{.draft_len = 3, .max_num_tokens = 16},
                                   {.draft_len = 3, .vanilla = true, .small_pool = true}};
  if (!IsFullTier()) return settings;
  settings.push_back({.draft_len = 7, .graphs = false, .max_batch_size = 1});
  settings.push_back({.overlap = false, .reuse = false, .draft_len_changes = {3, 0, 7, 1, 1, 2}});
  return settings;
}

// The drafts of a request's first steps against those that its tokens alone give.
void ExpectDrafts(FromScratch& scratch, const Request& request, const RequestRecord& record) {
  const int prompt_len = static_cast<int>(request.prompt_ids.size());
  for (size_t step = 0; step < std::min<size_t>(3, record.records.size()); ++step) {
    const StepRecord& made = record.records[step];
    std::vector<int32_t> tokens = request.prompt_ids;
    tokens.insert(tokens.end(), record.token_ids.begin(), record.token_ids.begin() + made.token_count);
    if (made.drafts.empty()) continue;
    const int count = static_cast<int>(made.drafts.size());
    EXPECT_EQ(made.drafts, scratch.Drafts(tokens, prompt_len, count, {})) << "step " << step;
  }
}

void ExpectSameTokens(const std::string& dir, const ModelClass& model_class) {
  const LoadedModel& model = LoadModelOnce(dir, TestBackend(), {}, model_class);
  FromScratch scratch(*model.device, model.config, model.weights, 400);
  for (const bool sampled : {false, true}) {
    const std::vector<Request> requests = TestRequests({.count = IsFullTier() ? 20 : 5, .sampled = sampled});
    const Setting plain = {
        .mtp = false, .overlap = false, .graphs = false, .max_batch_size = 1, .reuse = false};
    const RunRecord expected = RunRequests(model, plain, requests);
    for (const Setting& setting : Settings()) {
      SCOPED_TRACE(setting.DebugString());
      const RunRecord run = RunRequests(model, setting, requests);
      int accepted = 0;
      for (size_t id = 0; id < requests.size(); ++id) {
        ASSERT_EQ(run.requests[id].token_ids, expected.requests[id].token_ids) << "request " << id;
        accepted += run.requests[id].accepted_tokens;
        if (setting.vanilla || sampled) continue;
        ExpectDrafts(scratch, requests[id], run.requests[id]);
        if (testing::Test::HasFatalFailure()) return;
      }
      EXPECT_GT(accepted, 0);
    }
  }
}

// The paths of this machine but the widest one with AVX-512.
std::vector<std::string> Paths() {
  std::vector<std::string> paths;
  for (const char* isa : {"avx2", "portable"}) {
    if (CreateDevice("cpu", {.isa = isa}).ok()) paths.push_back(isa);
  }
  return paths;
}

TEST(Isa, EachGivesTheSameTokensWithAndWithoutDrafts) {
  for (const std::string& isa : Paths()) {
    SCOPED_TRACE(isa);
    EXPECT_EQ((*CreateDevice("cpu", {.isa = isa}))->name(), "cpu " + isa);
    ExpectSameTokens(kAbacusDir, {.isa = isa});
  }
}

TEST(Isa, EachDoesWithInputsInEightBits) {
  const std::string dir = testing::TempDir() + "/isa_test_int4";
  std::filesystem::remove_all(dir);
  const auto report =
      QuantizeCheckpoint({.in_dir = kAbacusDir, .out_dir = dir, .format = kInt4Format}, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  for (const std::string& isa : Paths()) {
    SCOPED_TRACE(isa);
    ExpectSameTokens(dir, {.isa = isa, .int8_inputs = true});
  }
}

}  // namespace
}  // namespace foredraft
