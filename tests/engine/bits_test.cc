// That a change keeps every bit: 20 requests for abacus and 15 for each of tests/golden/checkpoints, against
// the hashes in tests/golden/bits.golden.json. They run on each instruction path of the machine, with either
// dtype of the KV cache, without drafts, with 1 and with 3, by either drafter, on one rank and on two.
//
// There are two kinds of hashes. "tokens" has tokens, logprobs and finish reasons, which drafts, drafter and
// ranks must not change, so all these runs are held to one hash. "drafts" has what each step drafted and what
// came of it: a fault there costs speed and changes no token.
//
// Activations are rounded to BF16 between ops, so an op may give other bits in its FP32 results that none of
// these requests shows.
//
// Which requests share a step or a prefix depends on when they are submitted and changes no bit
// (same_tokens_test.cc). The K of a step would change drafts, so the policy is fixed.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/fnv.h"
#include "engine/kinds/read_model_config.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/test_requests.h"
#include "tests/golden/recorded_hashes.h"

namespace foredraft {
namespace {

constexpr char kCheckpoints[] = "tests/golden/checkpoints";
constexpr char kAbacus[] = "abacus";
constexpr int kAbacusRequests = 20;
constexpr int kRequestsOfOthers = 15;
constexpr int kMostTokens = 16;

RecordedHashes& Golden() {
  static auto* const golden = new RecordedHashes("tests/golden/bits.golden.json");
  return *golden;
}

// ---- what is run ----

std::vector<std::string> Checkpoints() {
  std::vector<std::string> names = {kAbacus};
  for (const auto& entry : std::filesystem::directory_iterator(kCheckpoints)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin() + 1, names.end());
  return names;
}

std::string DirOf(const std::string& checkpoint) {
  return checkpoint == kAbacus ? kAbacusDir : absl::StrCat(kCheckpoints, "/", checkpoint);
}

// Values of DeviceOptions::isa that the machine supports.
std::vector<std::string> InstructionPaths() {
  std::vector<std::string> isas;
  for (const char* isa : {"portable", "avx2", "avx512", "amx"}) {
    if (CreateDevice("cpu", {.isa = isa}).ok()) isas.push_back(isa);
  }
  return isas;
}

// DeepSeek-V4's cache has no latents.
std::vector<KvFormat> FormatsOf(const ModelConfig& config) {
  if (config.kv_lora_rank == 0) return {DType::kBF16, DType::kF8E4M3};
  return {std::begin(kKvFormats), std::end(kKvFormats)};
}

std::string PartOf(const std::string& checkpoint, KvFormat kv_format) {
  return absl::StrCat(checkpoint, ", KV ", KvFormatName(kv_format));
}

// Vanilla needs a module per draft; with a single module it drafts as Eagle does. DSpark's stages are none.
std::vector<Setting> SettingsOf(const ModelConfig& config, KvFormat kv_format) {
  const int modules = config.num_nextn_predict_layers;
  Setting setting = {.max_draft_len = 3,
                     .mtp = modules > 0,
                     .overlap = false,
                     .max_batch_size = 16,
                     .max_num_tokens = 512,
                     .kv_format = kv_format};
  std::vector<Setting> settings;
  for (setting.ranks = 1; setting.ranks <= 2; ++setting.ranks) {
    for (const int draft_len : {0, 1, 3}) {
      setting.draft_len = draft_len;
      setting.vanilla = false;
      if (modules > 0 || draft_len == 0) settings.push_back(setting);
      setting.vanilla = true;
      if (modules >= 3 && draft_len > 0 && !DraftsInBlocks(config)) settings.push_back(setting);
    }
  }
  return settings;
}

std::string NameOf(const Setting& setting, const ModelConfig& config) {
  return absl::StrCat("K ", setting.draft_len, ", ranks ", setting.ranks,
                      setting.vanilla          ? ", Vanilla"
                      : DraftsInBlocks(config) ? ", DSpark"
                      : setting.mtp            ? ", Eagle"
                                               : "");
}

// ---- requests ----

// Every way of choosing tokens, and every count of logprobs that the kernels treat differently.
void VarySampling(int i, Request& request) {
  SamplingParams& sampling = request.sampling;
  sampling = {.seed = 1000u + static_cast<uint64_t>(i)};
  if (i % 3 != 0) sampling.temperature = i % 3 == 1 ? 0.8f : 1.3f;
  if (i % 3 == 1) sampling.top_p = 0.95f;
  if (i % 6 == 2) {
    sampling.top_k = 20;
    sampling.min_p = 0.02f;
  }
  if (i % 4 == 1) sampling.repetition_penalty = 1.1f;
  if (i % 4 == 3) {
    sampling.presence_penalty = 0.3f;
    sampling.frequency_penalty = 0.2f;
  }
  constexpr int kLogprobCounts[] = {1, 0, 5, -1, 3, 20, 2};
  request.logprob_count = kLogprobCounts[i % 7];
  if (i == 7) request.draft_cap = 1;
  if (i == 11) request.draft_cap = 0;
}

std::vector<Request> AbacusRequests() {
  std::vector<Request> requests = TestRequests({.count = kAbacusRequests});
  for (int i = 0; i < kAbacusRequests; ++i) {
    VarySampling(i, requests[i]);
    requests[i].max_tokens = std::min(requests[i].max_tokens, kMostTokens);
  }
  return requests;
}

// Random ids; any prompt will do for an untrained model. Lengths around the ends of blocks and tiles; the
// longest prompts of a model begin with the same tokens.
std::vector<Request> RandomRequests(const std::string& checkpoint, const ModelConfig& config) {
  constexpr int kPromptLens[kRequestsOfOthers] = {1,  5,   16,  17,  33,  60,  65, 270,
                                                  48, 261, 100, 128, 130, 280, 200};
  // The bits of these two are those of full attention, which they have up to index_topk positions.
  const bool full = checkpoint == "deepseek_v32" || checkpoint == "glm_moe_dsa";
  const int longest = full ? config.index_topk : config.longest_sequence();
  const int context = std::min(kMaxSeqLen, longest);
  const int most_tokens = std::min(kMostTokens, context / 2);
  std::mt19937 random(static_cast<uint32_t>(Fnv1a(checkpoint)));
  const auto random_ids = [&](int count) {
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(2 + random() % (config.vocab_size - 2));
    return ids;
  };
  const std::vector<int32_t> shared = random_ids(kMaxSeqLen * 2 / 3);
  std::vector<Request> requests(kRequestsOfOthers);
  for (int i = 0; i < kRequestsOfOthers; ++i) {
    Request& request = requests[i];
    VarySampling(i, request);
    request.max_tokens = i == 2 ? 1 : most_tokens - i * 5 % (most_tokens / 2);
    request.stop_ids = {1};
    request.prompt_ids = random_ids(std::min(kPromptLens[i], context - most_tokens));
    const int length = static_cast<int>(request.prompt_ids.size());
    if (kPromptLens[i] > 200) {
      std::copy_n(shared.begin(), std::min<int>(shared.size(), length - 3), request.prompt_ids.begin());
    }
  }
  return requests;
}

// ---- hashes ----

template <class T>
uint64_t AddBits(T value, uint64_t hash) {
  static_assert(std::endian::native == std::endian::little);
  return Fnv1a({reinterpret_cast<const char*>(&value), sizeof(value)}, hash);
}

uint64_t HashOfTokens(const RunRecord& run) {
  uint64_t hash = kFnvOffset;
  for (const RequestRecord& request : run.requests) {
    hash = AddBits(request.token_ids.size(), hash);
    for (const int32_t id : request.token_ids) hash = AddBits(id, hash);
    hash = AddBits(request.finish, hash);
    hash = AddBits(request.logprobs.size(), hash);
    for (const TokenLogprob& token : request.logprobs) {
      hash = AddBits(token.logprob, AddBits(token.token_id, hash));
      hash = AddBits(token.top.size(), hash);
      for (const TopLogprob& top : token.top) hash = AddBits(top.logprob, AddBits(top.token_id, hash));
    }
  }
  return hash;
}

// Without the drafts past a request's cap: they are made where the step has a request with a higher cap.
uint64_t HashOfDrafts(const RunRecord& run, const std::vector<Request>& requests) {
  uint64_t hash = kFnvOffset;
  for (size_t id = 0; id < requests.size(); ++id) {
    hash = AddBits(run.requests[id].records.size(), hash);
    for (const StepRecord& step : run.requests[id].records) {
      hash = AddBits(step.accepted, AddBits(step.drafts_verified, AddBits(step.token_count, hash)));
      const int count = std::min<int>(step.drafts.size(), requests[id].draft_cap);
      hash = AddBits(count, hash);
      for (int i = 0; i < count; ++i) hash = AddBits(step.drafts[i], hash);
    }
  }
  return hash;
}

// ---- tests ----

// Nearly every machine has these paths, so the file must know them.
bool IsAlwaysRecorded(const std::string& isa) { return isa == "portable" || isa == "avx2"; }

class Bits : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};
INSTANTIATE_TEST_SUITE_P(
    Of, Bits, ::testing::Combine(::testing::ValuesIn(InstructionPaths()), ::testing::ValuesIn(Checkpoints())),
    [](const auto& info) { return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param)); });

TEST_P(Bits, AreThoseRecorded) {
  const auto& [isa, checkpoint] = GetParam();
  const LoadedModel& model = LoadModelOnce(DirOf(checkpoint), TestBackend(), {}, {.isa = isa});
  const std::string path = model.device->name();
  if (!Golden().Has(path) && !IsAlwaysRecorded(isa)) GTEST_SKIP() << path << ": not recorded";
  const std::vector<Request> requests =
      checkpoint == kAbacus ? AbacusRequests() : RandomRequests(checkpoint, model.config);
  for (const KvFormat kv_format : FormatsOf(model.config)) {
    const std::string part = PartOf(checkpoint, kv_format);
    if (!IsAlwaysRecorded(isa) && !Golden().Has(path, part)) {  // a checkpoint added on a machine without it
      GTEST_SKIP() << path << ": " << part << ": not recorded";
    }
    std::set<std::string> names = {"tokens"};
    for (const Setting& setting : SettingsOf(model.config, kv_format)) {
      const std::string name = NameOf(setting, model.config);
      SCOPED_TRACE(absl::StrCat(path, ": ", part, ": ", name));
      const RunRecord run = RunRequests(model, setting, requests);
      Golden().Expect(path, part, "tokens", HashOfTokens(run));
      Golden().Expect(path, part, absl::StrCat("drafts, ", name), HashOfDrafts(run, requests));
      names.insert(absl::StrCat("drafts, ", name));
    }
    Golden().ExpectNoOthers({path, part}, names);
  }
}

TEST(RecordedBits, AreOfCheckpointsThatThereAre) {
  std::set<std::string> parts;
  for (const std::string& checkpoint : Checkpoints()) {
    const auto config = ReadModelConfig(DirOf(checkpoint) + "/config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    for (const KvFormat kv_format : FormatsOf(*config)) parts.insert(PartOf(checkpoint, kv_format));
  }
  for (const std::string& isa : InstructionPaths()) {
    const auto device = CreateDevice("cpu", {.isa = isa});
    ASSERT_TRUE(device.ok()) << device.status();
    Golden().ExpectNoOthers({(*device)->name()}, parts);
  }
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) { return foredraft::Golden().RunAllTests(argc, argv); }
