#include "client/load/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::GetModelResponse Model() {
  v1::GetModelResponse model;
  model.set_vocab_size(100);
  model.set_max_seq_len(512);
  model.add_eos_token_ids(1);
  model.set_bos_token_id(0);
  model.set_begin_thinking_token_id(8);
  model.set_end_thinking_token_id(9);
  return model;
}

std::string DatasetFile(const std::string& text) {
  const std::string path = testing::TempDir() + "/foredraft_workload_" + std::to_string(getpid()) + ".jsonl";
  std::ofstream(path, std::ios::trunc) << text;
  return path;
}

absl::StatusOr<std::unique_ptr<DatasetWorkload>> Dataset(const std::string& text) {
  return DatasetWorkload::Read(DatasetFile(text), Model());
}

TEST(DatasetWorkload, ReadsIdsAndPromptsAndWrapsAround) {
  const auto dataset = Dataset(
      "{\"task_id\": 3, \"input_ids\": [5, 99], \"output_tokens\": 7, \"lora\": null}\n\n"
      "{\"prompt\": \"What is 2 + 2?\", \"output_tokens\": 9}\r\n");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 2);
  const WorkItem ids = (*dataset)->Item(0), text = (*dataset)->Item(1);
  EXPECT_THAT(ids.token_ids, ElementsAre(5, 99));
  EXPECT_EQ(ids.output_tokens, 7);
  EXPECT_THAT(ids.name, HasSubstr("task 3 ("));
  EXPECT_EQ(text.text, "What is 2 + 2?");
  EXPECT_TRUE(text.token_ids.empty());
  EXPECT_EQ(text.output_tokens, 9);
  EXPECT_THAT(text.name, HasSubstr(".jsonl:3"));
  EXPECT_EQ((*dataset)->Item(2).token_ids, ids.token_ids);
}

// The ten requests of docs/operations.md section 3: about 1,000 tokens in, 2,048 out.
TEST(DatasetWorkload, ReadsTheFileThatShips) {
  const auto dataset = DatasetWorkload::Read("deploy/bench/r1-1k-2k.jsonl", Model());
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->size(), 10);
  for (int64_t i = 0; i < 10; ++i) {
    const WorkItem item = (*dataset)->Item(i);
    EXPECT_EQ(item.output_tokens, 2048) << item.name;
    EXPECT_GT(item.text.size(), 2000u) << item.name;
    EXPECT_LT(item.text.size(), 4000u) << item.name;
  }
}

TEST(DatasetWorkload, NamesFileLineAndFieldOfABadLine) {
  const struct {
    const char* name;
    const char* line;
    const char* message;  // after file:line:
  } kCases[] = {
      {"not JSON", "{\"task_id\": 1,", "not a JSON object"},
      {"not an object", "[1, 2]", "not a JSON object"},
      {"no input", R"({"output_tokens": 5})", "neither input_ids nor prompt, allowed exactly one"},
      {"two inputs", R"({"input_ids": [5], "prompt": "x", "output_tokens": 5})",
       "both input_ids and prompt, allowed exactly one"},
      {"ids not a list", R"({"input_ids": 5, "output_tokens": 5})", "input_ids: 5, allowed a list"},
      {"no ids", R"({"input_ids": [], "output_tokens": 5})", "input_ids: [], allowed a list of at least 1"},
      {"id over the vocabulary", R"({"input_ids": [5, 100], "output_tokens": 5})",
       "input_ids[1]: 100, allowed 0..99"},
      {"id below 0", R"({"input_ids": [-1], "output_tokens": 5})", "input_ids[0]: -1, allowed 0..99"},
      {"id not a whole number", R"({"input_ids": [5.5], "output_tokens": 5})",
       "input_ids[0]: 5.5, allowed 0..99"},
      {"huge id", R"({"input_ids": [18446744073709551615], "output_tokens": 5})",
       "input_ids[0]: 18446744073709551615"},
      {"prompt not text", R"({"prompt": 5, "output_tokens": 5})", "prompt: 5, allowed a text"},
      {"empty prompt", R"({"prompt": "", "output_tokens": 5})", "prompt: \"\", allowed a text of at least 1"},
      {"no output", R"({"prompt": "x"})", "output_tokens: missing"},
      {"output 0", R"({"prompt": "x", "output_tokens": 0})", "output_tokens: 0, allowed at least 1"},
      {"output not a number", R"({"prompt": "x", "output_tokens": "9"})",
       "output_tokens: \"9\", allowed at least 1"},
  };
  for (const auto& one : kCases) {
    const std::string good = R"({"input_ids": [5], "output_tokens": 5})";
    const auto dataset = Dataset(good + "\n" + one.line + "\n" + good + "\n");
    ASSERT_EQ(dataset.status().code(), absl::StatusCode::kInvalidArgument) << one.name;
    EXPECT_THAT(std::string(dataset.status().message()), HasSubstr(std::string(".jsonl:2: ") + one.message))
        << one.name;
  }
}

TEST(DatasetWorkload, RefusesAFileThatIsAbsentOrEmpty) {
  const auto absent = DatasetWorkload::Read("/nonexistent/data.jsonl", Model());
  EXPECT_EQ(absent.status(), absl::NotFoundError("/nonexistent/data.jsonl: cannot be read"));
  EXPECT_EQ(DatasetWorkload::Read("/", Model()).status(), absl::NotFoundError("/: cannot be read"));
  EXPECT_THAT(std::string(Dataset("\n \n").status().message()),
              HasSubstr(".jsonl: no lines, allowed at least 1"));
}

absl::StatusOr<std::unique_ptr<SpeedBenchWorkload>> SpeedBench(
    const std::string& text, const std::vector<std::string>& categories = {}) {
  return SpeedBenchWorkload::Read({.path = DatasetFile(text), .categories = categories, .max_tokens = 77});
}

// A row as the dataset has it, and one as NVIDIA's scripts prepare it.
constexpr char kCodingRow[] =
    R"({"question_id": "c1", "category": "coding", "sub_category": null, "turns": ["Sort.", "Faster."],)"
    R"( "source": "a", "src_id": "b", "difficulty": null, "multiturn": true})";
constexpr char kMathRow[] =
    R"({"question_id":"m1","category":"math","messages":[{"role":"user","content":"Add."}],"multiturn":false})";

TEST(SpeedBenchWorkload, ReadsTurnsAndMessagesAndIgnoresOtherFields) {
  const auto rows = SpeedBench(std::string(kCodingRow) + "\n\n" + kMathRow + "\n" + R"({"turns": ["x"]})");
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)->size(), 3);
  const WorkItem coding = (*rows)->Item(0), math = (*rows)->Item(1), bare = (*rows)->Item(2);
  EXPECT_THAT(coding.turns, ElementsAre("Sort.", "Faster."));
  EXPECT_EQ(coding.category, "coding");
  EXPECT_EQ(coding.output_tokens, 77);
  EXPECT_THAT(coding.name, HasSubstr("question \"c1\" ("));
  EXPECT_THAT(math.turns, ElementsAre("Add."));
  EXPECT_THAT(math.name, HasSubstr(".jsonl:3)"));
  EXPECT_EQ(bare.category, "none");
  EXPECT_THAT(bare.name, HasSubstr(".jsonl:4"));
  EXPECT_EQ((*rows)->Item(3).turns, coding.turns);
  EXPECT_THAT((*rows)->Description(), HasSubstr(", 3 rows, 4 turns: coding, math, none; at most 77 tokens"));
}

TEST(SpeedBenchWorkload, SendsTheCategoriesThatAreAskedFor) {
  const std::string text = std::string(kCodingRow) + "\n" + kMathRow + "\n";
  const auto rows = SpeedBench(text, {"math", "math"});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)->size(), 1);
  EXPECT_EQ((*rows)->Item(0).category, "math");
  EXPECT_THAT(std::string(SpeedBench(text, {"math", "maths"}).status().message()),
              AllOf(testing::StartsWith("--category: maths, "), HasSubstr(".jsonl has coding, math")));
}

TEST(SpeedBenchWorkload, NamesFileLineAndFieldOfABadRow) {
  const struct {
    const char* name;
    const char* line;
    const char* message;  // after file:line:
  } kCases[] = {
      {"not JSON", R"({"turns": ["a")", "not a JSON object"},
      {"not UTF-8", "{\"turns\": [\"\xff\"]}", "not a JSON object"},
      {"no turns", R"({"category": "coding"})", "neither turns nor messages, allowed exactly one"},
      {"two forms", R"({"turns": ["a"], "messages": []})", "both turns and messages, allowed exactly one"},
      {"turns not a list", R"({"turns": "a"})", "turns: \"a\", allowed a list of at least 1"},
      {"turns empty", R"({"turns": []})", "turns: [], allowed a list of at least 1"},
      {"turn not text", R"({"turns": ["a", 5]})", "turns[1]: 5, allowed a text"},
      {"turn empty", R"({"turns": [""]})", "turns[0]: \"\", allowed a text of at least 1"},
      {"placeholder",
       R"({"turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"]})",
       "turns[0]: SPEED-Bench's placeholder, allowed a prompt"},
      {"message not an object", R"({"messages": ["a"]})", "messages[0]: \"a\", allowed an object"},
      {"message without content", R"({"messages": [{"role": "user"}]})", "messages[0]: {\"role\":\"user\"}"},
      {"message of another role", R"({"messages": [{"role": "assistant", "content": "a"}]})",
       "messages[0].role: \"assistant\", allowed \"user\""},
      {"message not text", R"({"messages": [{"role": "user", "content": [1]}]})", "messages[0].content: [1]"},
      {"category not text", R"({"turns": ["a"], "category": 5})", "category: 5, allowed a text"},
  };
  for (const auto& one : kCases) {
    // A bad row is refused whatever the category that is asked for.
    const auto rows = SpeedBench(std::string(kMathRow) + "\n" + one.line + "\n", {"math"});
    ASSERT_EQ(rows.status().code(), absl::StatusCode::kInvalidArgument) << one.name;
    EXPECT_THAT(std::string(rows.status().message()), HasSubstr(std::string(".jsonl:2: ") + one.message))
        << one.name;
  }
}

TEST(SpeedBenchWorkload, RefusesAFileThatIsAbsentOrEmpty) {
  EXPECT_EQ(SpeedBenchWorkload::Read({.path = "/nonexistent/a.jsonl"}).status(),
            absl::NotFoundError("/nonexistent/a.jsonl: cannot be read"));
  EXPECT_THAT(std::string(SpeedBench("\n \n", {"math"}).status().message()),
              HasSubstr(".jsonl: no lines, allowed at least 1"));
}

TEST(Workloads, RefuseALineThatIsTooLongToKeep) {
  const std::string line = std::string(kMathRow) + "\n" + std::string((size_t{16} << 20) + 1, ' ');
  for (const absl::Status& status :
       {SpeedBench(line).status(), Dataset("\n" + line.substr(line.find('\n') + 1)).status()}) {
    EXPECT_THAT(std::string(status.message()), testing::EndsWith(".jsonl:2: longer than 16 MiB"));
  }
}

TEST(RandomWorkload, HasTheGivenLengthsAndOnlyOrdinaryIds) {
  const auto workload = RandomWorkload::Make({.input_len = 300, .output_len = 20, .seed = 4}, Model());
  ASSERT_TRUE(workload.ok()) << workload.status();
  std::vector<int> seen(100);
  for (int i = 0; i < 20; ++i) {
    const WorkItem item = (*workload)->Item(i);
    EXPECT_EQ(item.token_ids.size(), 300u);
    EXPECT_EQ(item.output_tokens, 20);
    for (const int32_t id : item.token_ids) ++seen.at(id);
  }
  for (int id = 0; id < 100; ++id) {
    const bool special = id == 0 || id == 1 || id == 8 || id == 9;
    EXPECT_EQ(seen[id] == 0, special) << id;
  }
}

TEST(RandomWorkload, IsAFunctionOfSeedAndIndex) {
  const auto one = RandomWorkload::Make({.range_ratio = 0.5, .seed = 4}, Model());
  const auto same = RandomWorkload::Make({.range_ratio = 0.5, .seed = 4}, Model());
  const auto other = RandomWorkload::Make({.range_ratio = 0.5, .seed = 5}, Model());
  EXPECT_EQ((*one)->Item(17).token_ids, (*same)->Item(17).token_ids);
  EXPECT_EQ((*one)->Item(17).output_tokens, (*same)->Item(17).output_tokens);
  EXPECT_NE((*one)->Item(17).token_ids, (*one)->Item(18).token_ids);
  EXPECT_NE((*one)->Item(17).token_ids, (*other)->Item(17).token_ids);
}

TEST(RandomWorkload, SpreadsLengthsOverTheWholeRange) {
  const auto workload = RandomWorkload::Make({.input_len = 10, .output_len = 4, .range_ratio = 0.5}, Model());
  std::vector<int> in, out;
  for (int i = 0; i < 1000; ++i) {
    in.push_back(static_cast<int>((*workload)->Item(i).token_ids.size()));
    out.push_back((*workload)->Item(i).output_tokens);
  }
  EXPECT_EQ(*std::min_element(in.begin(), in.end()), 5);
  EXPECT_EQ(*std::max_element(in.begin(), in.end()), 15);
  EXPECT_EQ(*std::min_element(out.begin(), out.end()), 2);
  EXPECT_EQ(*std::max_element(out.begin(), out.end()), 6);
  EXPECT_EQ((*workload)->Description(), "random, 5..15 tokens in, 2..6 out");
}

TEST(RandomWorkload, RefusesWhatDoesNotFitTheModel) {
  const struct {
    RandomWorkloadOptions options;
    const char* message;
  } kCases[] = {
      {{.input_len = 0}, "--random-input-len: 0, allowed at least 1"},
      {{.output_len = 0}, "--random-output-len: 0, allowed at least 1"},
      {{.range_ratio = 1}, "--random-range-ratio: 1, allowed 0 to below 1"},
      {{.input_len = 500, .output_len = 13},
       "--random-input-len + --random-output-len: up to 513 tokens, the daemon's max_seq_len is 512"},
  };
  for (const auto& one : kCases) {
    EXPECT_EQ(RandomWorkload::Make(one.options, Model()).status(), absl::InvalidArgumentError(one.message));
  }
  EXPECT_TRUE(RandomWorkload::Make({.input_len = 500, .output_len = 12}, Model()).ok());
}

TEST(WarmUpWorkload, HasTheShapesButNothingOfThePrompts) {
  const auto shapes = Dataset(
      "{\"input_ids\": [5, 5, 5, 5, 5, 5, 5, 5], \"output_tokens\": 7}\n"
      "{\"prompt\": \"twelve bytes\", \"output_tokens\": 9}\n");
  ASSERT_TRUE(shapes.ok()) << shapes.status();
  const auto warmup = WarmUpWorkload::Make(**shapes, Model(), 3);
  const WorkItem ids = (*warmup)->Item(0), text = (*warmup)->Item(1);
  EXPECT_EQ(ids.token_ids.size(), 8u);
  EXPECT_NE(ids.token_ids, (*shapes)->Item(0).token_ids);
  EXPECT_EQ(ids.output_tokens, 7);
  EXPECT_EQ(text.token_ids.size(), 4u);  // one per four bytes, and one
  EXPECT_EQ(text.text, "");
}

TEST(WarmUpWorkload, HasOneTurnOfAChat) {
  const auto chats = SpeedBench(kCodingRow);
  const WorkItem item = (*WarmUpWorkload::Make(**chats, Model(), 3))->Item(0);
  EXPECT_EQ(item.token_ids.size(), 2u);  // "Sort.": one per four bytes, and one
  EXPECT_TRUE(item.turns.empty());
}

TEST(PromptsOnlyWorkload, RequestsOneToken) {
  const auto prompts = Dataset("{\"input_ids\": [5, 6], \"output_tokens\": 7}\n");
  const WorkItem item = PromptsOnlyWorkload(**prompts).Item(0);
  EXPECT_THAT(item.token_ids, ElementsAre(5, 6));
  EXPECT_EQ(item.output_tokens, 1);
}

TEST(PromptsOnlyWorkload, RequestsWholeAnswersOfAChatThatRepeatsThem) {
  const auto chats = SpeedBench(std::string(kCodingRow) + "\n" + kMathRow + "\n");
  const PromptsOnlyWorkload prompts(**chats);
  EXPECT_EQ(prompts.Item(0).output_tokens, 77);
  EXPECT_EQ(prompts.Item(1).output_tokens, 1);
}

}  // namespace
}  // namespace foredraft
