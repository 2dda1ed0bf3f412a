// Engines of two ranks on backend cuda, joined by NCCL on the host: the same tokens as one rank, and an end
// of the group when a rank is lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "tests/cuda_on_host/nccl_faults.h"
#include "tests/engine/comm/rank_threads.h"
#include "tests/engine/constrained_requests.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/input_scales.h"
#include "tools/synth/synth.h"

namespace foredraft {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2;
constexpr int kVocab = 96;
constexpr std::chrono::seconds kSlack{60};  // added to bounds for a busy machine

constexpr char kSmallModel[] = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2,
  "num_nextn_predict_layers": 1, "first_k_dense_replace": 1, "intermediate_size": 32, "moe_intermediate_size": 16,
  "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
  "routed_scaling_factor": 2.5, "num_attention_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 32,
  "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "max_position_embeddings": 512,
  "bos_token_id": 0, "eos_token_id": 1})";

std::string Write(const std::string& model, const std::string& name, const WeightFormat& format) {
  static int written = 0;
  const std::string dir = absl::StrCat(::testing::TempDir(), "/ranks_on_host_", name, "_", NameOf(format),
                                       ::getpid(), "_", ++written);
  std::filesystem::create_directories(dir);
  std::ofstream(dir + "/config.json") << model;
  const auto report = WriteRandomCheckpoint({.config_json = dir + "/config.json",
                                             .out_dir = dir + "/checkpoint",
                                             .seed = 3,
                                             .projections = format});
  CHECK(report.ok()) << report.status().ToString();
  return dir + "/checkpoint";
}

std::string WriteSmall(const WeightFormat& format) {
  std::string model = kSmallModel;
  // Gate and up of FP8 are stacked where each has whole blocks.
  if (IsF8(format))
    model = absl::StrReplaceAll(model, {{"\"moe_intermediate_size\": 16", "\"moe_intermediate_size\": 128"}});
  return Write(model, "small", format);
}

// Two ranks can share everything in whole blocks of 128.
std::string WriteBlocks(const WeightFormat& format) {
  return Write(
      absl::StrReplaceAll(kSmallModel, {{"\"hidden_size\": 32", "\"hidden_size\": 256"},
                                        {"\"intermediate_size\": 32", "\"intermediate_size\": 256"},
                                        {"\"moe_intermediate_size\": 16", "\"moe_intermediate_size\": 256"},
                                        {"\"n_routed_experts\": 16", "\"n_routed_experts\": 8"},
                                        {"\"qk_nope_head_dim\": 16", "\"qk_nope_head_dim\": 112"},
                                        {"\"v_head_dim\": 16", "\"v_head_dim\": 128"},
                                        {"\"q_lora_rank\": 16", "\"q_lora_rank\": 128"}}),
      "blocks", format);
}

const LoadedModel& SmallModel() {
  static const std::string checkpoint = WriteSmall(kBf16Format);
  return LoadModelOnce(checkpoint);
}

Setting SmallSetting(int ranks, int draft_len, bool graphs) {
  return {.ranks = ranks,
          .draft_len = draft_len,
          .max_draft_len = 2,
          .mtp = draft_len > 0,
          .graphs = graphs,
          .max_batch_size = 2,
          .max_num_tokens = 24};
}

// More requests than slots, half of them sampled.
std::vector<Request> SmallRequests() {
  std::mt19937 random(5);
  std::vector<Request> requests(5);
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.prompt_ids.resize(1 + random() % 30);
    for (int32_t& id : request.prompt_ids) id = static_cast<int32_t>(2 + random() % (kVocab - 2));
    request.max_tokens = 4 + static_cast<int>(i);
    request.stop_ids = {1};
    request.sampling.seed = 100 + i;
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    request.logprob_count = 1;
  }
  return requests;
}

// Tokens and logprobs, to the bit.
void ExpectSame(const RunRecord& run, const RunRecord& alone) {
  for (size_t id = 0; id < run.requests.size(); ++id) {
    SCOPED_TRACE(id);
    EXPECT_EQ(run.requests[id].token_ids, alone.requests[id].token_ids);
    EXPECT_EQ(run.requests[id].finish, alone.requests[id].finish);
    ASSERT_EQ(run.requests[id].logprobs.size(), alone.requests[id].logprobs.size());
    for (size_t i = 0; i < run.requests[id].logprobs.size(); ++i) {
      EXPECT_EQ(run.requests[id].logprobs[i].logprob, alone.requests[id].logprobs[i].logprob) << i;
    }
  }
}

TEST(RanksOnHost, TwoRanksGiveTheTokensOfOne) {
  for (const auto& [graphs, windows] : {std::pair{true, true}, {true, false}, {false, false}}) {
    SCOPED_TRACE(
        absl::StrCat(graphs ? "captured steps, FP8 cache" : "eager", windows ? ", windows" : ", NCCL"));
    Setting one = SmallSetting(1, 0, /*graphs=*/false), two = SmallSetting(kRanks, 2, graphs);
    two.shared_memory = windows;
    one.kv_format = two.kv_format = graphs ? DType::kF8E4M3 : DType::kBF16;
    const RunRecord alone = RunRequests(SmallModel(), one, SmallRequests());
    const RunRecord run = RunRequests(SmallModel(), two, SmallRequests());
    EXPECT_EQ(run.replays > 0, graphs);
    EXPECT_GT(run.requests_of_rank[1], 0);
    ExpectSame(run, alone);
  }
}

// Experts in FP8 read quantised rows, which cross the ranks as codes and scales; those in NVFP4 read BF16
// rows.
TEST(RanksOnHost, QuantizedExpertsGiveTheTokensOfOneRank) {
  for (const WeightFormat& format : {kFp8Format, kNvfp4Format}) {
    const LoadedModel& model = LoadModelOnce(WriteSmall(format));
    EXPECT_TRUE(model.device->quantizes_rows());
    EXPECT_EQ(model.weights.Find<V3Weights>()->layers[1].moe.expert_gate_up.first.format, format);
    const RunRecord alone = RunRequests(model, SmallSetting(1, 0, /*graphs=*/false), SmallRequests());
    for (const int ranks : IsF8(format) ? std::vector{2, 4} : std::vector{2}) {
      SCOPED_TRACE(absl::StrCat(NameOf(format), ", ranks ", ranks));
      ExpectSame(RunRequests(model, SmallSetting(ranks, 2, /*graphs=*/ranks == 2), SmallRequests()), alone);
    }
  }
}

// Codes and scales cross by windows and by NCCL; where every expert has a scale of its own, BF16 rows do.
TEST(RanksOnHost, RoundedInputsOfExpertsGiveTheTokensOfOneRank) {
  const std::string plain = WriteSmall(kNvfp4Format);
  for (const bool alike : {true, false}) {
    const std::string dir = absl::StrCat(plain, alike ? "_alike" : "_own");
    CopyWithInputScales(plain, dir, alike ? AlikeInputScale : OwnInputScale);
    const LoadedModel& model = LoadModelOnce(dir, TestBackend(), {}, {.nvfp4_inputs = true});
    const InputScales& inputs = model.weights.Find<V3Weights>()->layers[1].moe.gate_up_inputs;
    ASSERT_TRUE(inputs);
    EXPECT_EQ(inputs.alike, alike);
    const RunRecord alone = RunRequests(model, SmallSetting(1, 0, /*graphs=*/false), SmallRequests());
    for (const bool windows : alike ? std::vector{true, false} : std::vector{true}) {
      SCOPED_TRACE(absl::StrCat("alike ", alike, ", windows ", windows));
      Setting two = SmallSetting(kRanks, 2, /*graphs=*/windows);
      two.shared_memory = windows;
      ExpectSame(RunRequests(model, two, SmallRequests()), alone);
    }
  }
}

// Heads, columns and vocabulary over two ranks that share every request, columns of experts too. FP8 weights
// have whole blocks on either; their activated columns cross as codes and scales.
TEST(RanksOnHost, ATensorGroupGivesTheTokensOfOneRank) {
  struct Shared {
    const LoadedModel& model;
    int moe_tp;
  };
  const Shared cases[] = {{SmallModel(), 1},
                          {LoadModelOnce(WriteBlocks(kFp8Format)), 2},
                          {LoadModelOnce(WriteBlocks(kNvfp4Format)), 1}};
  std::vector<Request> requests = SmallRequests();
  requests.resize(2);
  for (Request& request : requests) {
    request.prompt_ids.resize(std::min<size_t>(request.prompt_ids.size(), 6));
    request.max_tokens = 4;
  }
  for (const auto& [model, moe_tp] : cases) {
    SCOPED_TRACE(absl::StrCat(NameOf(model.config.projections), ", columns over ", moe_tp));
    const RunRecord alone = RunRequests(model, SmallSetting(1, 0, /*graphs=*/false), requests);
    Setting two = SmallSetting(1, 2, /*graphs=*/true);
    two.attention_tp = kRanks;
    two.moe_tp = moe_tp;
    // NCCL carries what the windows do; one case shows it.
    for (const bool shared_memory : &model == &SmallModel() ? std::vector{true, false} : std::vector{true}) {
      SCOPED_TRACE(shared_memory ? "windows" : "NCCL");
      two.shared_memory = shared_memory;
      const RunRecord run = RunRequests(model, two, requests);
      EXPECT_GT(run.replays, 0);
      ExpectSame(run, alone);
    }
  }
}

// Greedy and sampled requests with grammars, behind a thought or from the first token on: masks reach the
// kernels of captured steps and of eager ones.
TEST(RanksOnHost, ConstrainedTokensAreTheSame) {
  const Setting plain = SmallSetting(1, 0, /*graphs=*/false);
  std::vector<Request> requests = SmallRequests();
  for (Request& request : requests) request.max_tokens = 12;
  const RunRecord free_run = RunRequests(SmallModel(), plain, requests);
  const Constraint constraint = {.kind = Constraint::kRegex, .source = "([a-f]{1,2}zkz[0-9])+"};
  for (size_t i = 0; i + 1 < requests.size(); ++i) {  // the last one stays free
    Constrain({.constraint = constraint, .thought_end = i < 2 ? 3 : -1}, free_run.requests[i].token_ids,
              LetterVocabulary(kVocab), requests[i]);
  }
  const RunRecord alone = RunRequests(SmallModel(), plain, requests);
  for (const bool graphs : {true, false}) {
    const RunRecord run = RunRequests(SmallModel(), SmallSetting(graphs ? 1 : kRanks, 2, graphs), requests);
    for (size_t id = 0; id < requests.size(); ++id) {
      EXPECT_EQ(run.requests[id].token_ids, alone.requests[id].token_ids) << "request " << id << graphs;
      EXPECT_EQ(FaultOf(requests[id], run.requests[id].token_ids), "") << "request " << id;
    }
    EXPECT_GT(run.load.masks, 10u);
    EXPECT_GT(run.load.held_slots, 2u);
    EXPECT_GT(run.load.forced_drafts, 0u);
  }
}

// A step without requests, in which all exchanges take place.
IterationPlan EmptyStep() {
  IterationPlan plan;
  plan.draft_len = 2;
  plan.decode_bucket = 2;
  plan.prefill_rows.assign(kRanks, 0);
  plan.ended_prompts.assign(kRanks, 0);
  plan.ranks.resize(kRanks);
  return plan;
}

std::vector<std::unique_ptr<RankEngine>> Engines(bool graphs, std::chrono::seconds step_timeout,
                                                 bool shared_memory) {
  EngineOptions options = EngineOptionsOf(SmallModel(), SmallSetting(kRanks, 2, graphs));
  options.step_timeout = step_timeout;
  return CreateEngines(SmallModel(), options, shared_memory);
}

// Whether steps are captured, and whether their exchanges go through windows.
class LostRankOnHost : public ::testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  static std::vector<std::unique_ptr<RankEngine>> Start(std::chrono::seconds step_timeout) {
    return Engines(std::get<0>(GetParam()), step_timeout, std::get<1>(GetParam()));
  }
  void TearDown() override { cuda_on_host::ResetNccl(); }
};
INSTANTIATE_TEST_SUITE_P(CapturedOrEager, LostRankOnHost,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()));

TEST_P(LostRankOnHost, AStepThatAPeerDoesNotRunEndsAtItsDeadline) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const std::chrono::seconds deadline(30);  // a whole step takes seconds
#else
  const std::chrono::seconds deadline(2);
#endif
  auto engines = Start(deadline);
  ForEachRank(kRanks, [&](int rank) { ASSERT_TRUE(engines[rank]->Run(EmptyStep(), rank).ok()); });
  auto start = Clock::now();
  const absl::Status lost = engines[0]->Run(EmptyStep(), 0).status();
  EXPECT_LT(Clock::now() - start, deadline + kSlack);
  EXPECT_EQ(lost, absl::DeadlineExceededError(
                      absl::StrCat("rank 0: a step did not end within ", deadline.count(), " s")));
  EXPECT_EQ(engines[0]->rank().comm->status().message(), lost.message());
  start = Clock::now();
  engines.clear();  // revokes what still runs
  EXPECT_LT(Clock::now() - start, kSlack);
}

TEST_P(LostRankOnHost, ANetworkErrorEndsAWaitingStep) {
  auto engines = Start(std::chrono::seconds(600));
  std::thread waiting([&] {
    UseDeviceOfRank(0);
    const absl::Status lost = engines[0]->Run(EmptyStep(), 0).status();
    EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
    EXPECT_THAT(std::string(lost.message()),
                ::testing::HasSubstr("remote process exited or there was a network error"));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  cuda_on_host::SetNcclAsyncError(0, ncclRemoteError);
  waiting.join();
}

// A collective of the second step cannot be launched while the first step waits for the peer. NCCL can revoke
// nothing in this state, so only the end of the communicator ends the first step.
TEST(RanksOnHost, AFailedLaunchBehindAWaitingStepEndsTheRank) {
  auto engines = Engines(/*graphs=*/false, std::chrono::seconds(600), /*shared_memory=*/false);
  UseDeviceOfRank(0);
  engines[0]->Submit(EmptyStep(), 0);
  cuda_on_host::FailNccl(cuda_on_host::kNcclLaunch, 0, ncclSystemError);
  engines[0]->Submit(EmptyStep(), 0);
  const absl::Status lost = engines[0]->Finish(Clock::now() + std::chrono::seconds(600)).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  const auto start = Clock::now();
  engines.clear();
  EXPECT_LT(Clock::now() - start, kSlack);
  cuda_on_host::ResetNccl();
}

}  // namespace
}  // namespace foredraft
