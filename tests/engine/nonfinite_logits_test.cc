// A model whose logits overflow at some positions, with weights that are finite: a request that meets such a
// position ends there, in every setting at the same token; the others do not notice.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/checkpoint/safetensors.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

// Abacus with one row of lm_head so large that the token's logit is beyond FP32 where the hidden state is
// large in one column.
std::string OverflowingModel() {
  const std::string dir = testing::TempDir() + "overflowing";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directory(dir);
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                           "tokenizer_config.json"}) {
    std::filesystem::copy_file(std::string(kAbacusDir) + "/" + name, dir + "/" + name);
  }
  const std::string path = dir + "/model.safetensors";
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  const TensorEntry& lm_head = *file->Find("lm_head.weight");
  std::vector<uint16_t> row(lm_head.shape[1]);
  row[3] = 0x7f7f;  // 3.4e38, the largest
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(lm_head.begin);
  out.write(reinterpret_cast<const char*>(row.data()),
            static_cast<std::streamsize>(row.size() * sizeof(row[0])));
  return dir;
}

TEST(NonfiniteLogits, EndTheSameRequestsAtTheSameTokenInEverySetting) {
  const LoadedModel& model = LoadModelOnce(OverflowingModel());
  const std::vector<Request> requests = TestRequests({});
  const Setting settings[] = {
      {},
      {.draft_len = 3},
      {.draft_len = 3, .overlap = false, .graphs = false, .max_batch_size = 1},
      {.draft_len = 2, .vanilla = true},
      {.draft_len = 3, .small_pool = true},
      {.ranks = 2, .draft_len = 3},
  };
  RunRecord first;
  for (const Setting& setting : settings) {
    SCOPED_TRACE(setting.DebugString());
    const RunRecord run = RunRequests(model, setting, requests);
    if (first.requests.empty()) first = run;
    uint64_t ended = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(run.requests[i].token_ids, first.requests[i].token_ids) << i;
      EXPECT_EQ(run.requests[i].finish, first.requests[i].finish) << i;
      ended += run.requests[i].finish == FinishReason::kError;
    }
    EXPECT_EQ(run.load.nonfinite_logits, ended);
    EXPECT_GT(ended, 0u);
    EXPECT_LT(ended, requests.size());
  }
}

// Requests whose logits overflow before the first token. Their prompts are what ended requests had; a prompt
// rounds otherwise than tokens that were decoded, so a logit near the limit may be finite now.
std::vector<Request> EndedAtTheirPrompt(const LoadedModel& model) {
  std::vector<Request> requests = TestRequests({});
  const RunRecord run = RunRequests(model, {}, requests);
  std::vector<Request> longer;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (run.requests[i].finish != FinishReason::kError) continue;
    const std::vector<int32_t>& ids = run.requests[i].token_ids;
    requests[i].prompt_ids.insert(requests[i].prompt_ids.end(), ids.begin(), ids.end());
    longer.push_back(requests[i]);
  }
  const RunRecord again = RunRequests(model, {}, longer);
  std::vector<Request> ended;
  for (size_t i = 0; i < longer.size(); ++i) {
    if (again.requests[i].token_ids.empty()) ended.push_back(longer[i]);
  }
  return ended;
}

TEST(NonfiniteLogits, EndARequestAtItsPrompt) {
  const LoadedModel& model = LoadModelOnce(OverflowingModel());
  const std::vector<Request> requests = EndedAtTheirPrompt(model);
  ASSERT_GT(requests.size(), 3u);
  for (const Setting& setting : {Setting{}, Setting{.draft_len = 3}, Setting{.ranks = 2, .draft_len = 3}}) {
    SCOPED_TRACE(setting.DebugString());
    const RunRecord ended = RunRequests(model, setting, requests);
    for (const RequestRecord& record : ended.requests) {
      EXPECT_EQ(record.finish, FinishReason::kError);
      EXPECT_TRUE(record.token_ids.empty());
    }
    EXPECT_EQ(ended.load.nonfinite_logits, requests.size());
  }
}

}  // namespace
}  // namespace foredraft
