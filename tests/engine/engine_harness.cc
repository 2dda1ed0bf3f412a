#include "tests/engine/engine_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "engine/engine_shapes.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "engine/model_weights.h"
#include "engine/spec/dspark/dspark_drafter.h"
#include "engine/spec/eagle/eagle_drafter.h"
#include "engine/spec/eagle3/eagle3_drafter.h"
#include "engine/spec/vanilla/vanilla_drafter.h"
#include "scheduler/serving_loop.h"
#include "tests/engine/comm/rank_threads.h"
#include "tests/engine/losable_ranks.h"

namespace foredraft {
namespace {
constexpr int kTokensPerBlock = 16;
// Too few for two of the longest test sequences.
constexpr int kSmallPoolTokens = 24 * 16;
constexpr int kSmallPoolBlocks = 4;  // at least: V4's blocks have 128 tokens

std::vector<int> BatchSizes(int max_batch_size) {
  std::vector<int> sizes;
  for (int size = 1; size < max_batch_size; size = size < 8 ? size * 2 : size + 8) sizes.push_back(size);
  sizes.push_back(max_batch_size);
  return sizes;
}

// Gathers updates until every request has ended.
class Gatherer {
 public:
  Gatherer(RunRecord& record, const std::vector<Request>& requests)
      : record_(record), open_(requests.size()) {}

  void Take(const std::vector<RequestUpdate>& updates) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const RequestUpdate& update : updates) {
      RequestRecord& request = record_.requests[update.request_id];
      request.token_ids.insert(request.token_ids.end(), update.token_ids.begin(), update.token_ids.end());
      request.logprobs.insert(request.logprobs.end(), update.logprobs.begin(), update.logprobs.end());
      if (update.first_token) request.cached_tokens = update.cached_tokens;
      if (update.has_step) {
        ++request.steps;
        request.draft_tokens += update.step.drafts_verified;
        request.accepted_tokens += update.step.accepted;
        request.relaxed_tokens += update.step.relaxed;
        for (int i = 0; i < update.step.accepted; ++i) ++request.accepted_per_position[i];
      }
      if (update.finish != FinishReason::kNone) {
        EXPECT_EQ(request.finish, FinishReason::kNone) << "request " << update.request_id << " ended twice";
        request.finish = update.finish;
        --open_;
      }
    }
    changed_.notify_all();
  }

  bool WaitForAll() { return WaitForOpen(0); }

  // False: all requests ended first.
  bool WaitForLoss(const ServingLoop& loop) {
    constexpr std::chrono::milliseconds kTick(1);
    std::unique_lock<std::mutex> lock(mutex_);
    while (open_ > 0 && loop.health().ok()) changed_.wait_for(lock, kTick);
    return open_ > 0;
  }

  // Requests not submitted yet count as open.
  bool WaitForOpen(size_t most) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_until(lock, std::chrono::steady_clock::now() + kRunLimit,
                               [&] { return open_ <= most; });
  }

  // False: a rank was lost first, or the limit of a run has passed.
  bool WaitForOpenOrLoss(size_t most, const ServingLoop& loop) {
    constexpr std::chrono::milliseconds kTick(1);
    const auto end = std::chrono::steady_clock::now() + kRunLimit;
    std::unique_lock<std::mutex> lock(mutex_);
    while (open_ > most && loop.health().ok() && std::chrono::steady_clock::now() < end) {
      changed_.wait_for(lock, kTick);
    }
    return open_ <= most;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  RunRecord& record_;  // guarded by mutex_
  size_t open_;        // guarded by mutex_
};

// Gives the requests their ids. Returns their indices by seed.
std::map<uint64_t, int> Number(const Setting& setting, std::vector<Request>& requests) {
  std::map<uint64_t, int> request_of_seed;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].id = i;
    if (setting.draft_caps) requests[i].draft_cap = static_cast<int>(i * 5 % 8);
    CHECK(request_of_seed.emplace(requests[i].sampling.seed, static_cast<int>(i)).second);
  }
  return request_of_seed;
}

// On the scheduler's thread, which is the one that changes the record.
bool IsLostNow(const Setting& setting, const RunRecord& record) {
  if (setting.lost_at_token == 0) return false;
  return std::any_of(record.requests.begin() + setting.turn, record.requests.end(),
                     [&](const RequestRecord& request) {
                       return static_cast<int>(request.token_ids.size()) >= setting.lost_at_token;
                     });
}

Speculation WithDraftLen(const SchedulerOptions& options, int draft_len) {
  return {.draft_len = draft_len, .acceptance = options.acceptance, .draft_policy = options.draft_policy};
}

}  // namespace

std::string Setting::DebugString() const {
  return absl::StrCat("ranks ", ranks, " x ", attention_tp, " (", moe_tp, " per expert)",
                      shared_memory ? "" : " by messages", ", open ", max_open, ", K ", draft_len, " of ",
                      max_draft_len, mtp ? "" : " (no MTP)", vanilla ? " vanilla" : "", ", overlap ", overlap,
                      ", graphs ", graphs, padding ? "" : " (no padding)", ", batch ", max_batch_size,
                      ", budget ", max_num_tokens, ", reuse ", reuse, reuse_generated ? " (generated)" : "",
                      ", KV ", KvFormatName(kv_format), ", small pool ", small_pool, ", draft caps ",
                      draft_caps, ", policy ", static_cast<int>(policy), ", rows for ", verify_len,
                      " drafts, late ", late_percent, "%, losses [", absl::StrJoin(losses, " "),
                      "], K changes ", absl::StrJoin(draft_len_changes, " "));
}

const LoadedModel& LoadModelOnce(const std::string& checkpoint_dir, const std::string& backend,
                                 const ModelShard& shard, const ModelClass& model_class) {
  using Key = std::tuple<std::string, std::string, int, int, int, int, ModelClass>;
  static auto* const models = new std::map<Key, LoadedModel>;
  const Key key = {checkpoint_dir,      backend,
                   shard.rank,          shard.layout.attention_dp,
                   shard.layout.moe_tp, shard.layout.attention_tp,
                   model_class};
  const auto found = models->find(key);
  if (found != models->end()) return found->second;
  const DeviceOptions options = {
      .threads = 2, .isa = model_class.isa, .int8_inputs = model_class.int8_inputs};
  LoadedModel model = LoadModel(checkpoint_dir, backend, shard, options, model_class.nvfp4_inputs);
  return models->emplace(key, std::move(model)).first->second;
}

LoadedModel LoadModel(const std::string& checkpoint_dir, const std::string& backend, const ModelShard& shard,
                      const DeviceOptions& options, bool nvfp4_inputs) {
  LoadedModel model;
  model.dir = checkpoint_dir;
  model.device_options = options;
  const std::pair<std::string, std::string> dirs = absl::StrSplit(checkpoint_dir, '+');
  auto config = ReadModelConfig(dirs.first + "/config.json");
  CHECK(config.ok()) << config.status().ToString();
  model.config = *std::move(config);
  const bool has_head = !dirs.second.empty();
  if (has_head) {
    Config of_head;
    of_head.speculative_config.emplace().speculative_model = dirs.second;
    const absl::Status read = kEagle3.read(of_head, model.config);
    CHECK(read.ok()) << read.ToString();
  }
  model.config.nvfp4_inputs = nvfp4_inputs;
  auto device = CreateDevice(backend, options);
  CHECK(device.ok()) << device.status().ToString();
  model.device = *std::move(device);
  const auto stream = model.device->CreateStream();
  const int modules = has_head ? 0 : model.config.num_nextn_predict_layers;
  auto weights = LoadWeights(dirs.first, model.config, modules, *model.device, *stream, nullptr, shard);
  CHECK(weights.ok()) << weights.status().ToString();
  model.weights = *std::move(weights);
  if (has_head) {
    auto head = kEagle3.load(model.config, *model.device, *stream);
    CHECK(head.ok()) << head.status().ToString();
    model.weights.SetDrafter(*std::move(head));
  }
  return model;
}

LoadedWeights WeightsFor(const LoadedWeights& weights, const EngineOptions& options) {
  LoadedWeights copy = weights;
  if (options.drafter == nullptr && copy.Find<V4Weights>() != nullptr) copy.Get<V4Weights>().dspark = {};
  return copy;
}

EngineOptions EngineOptionsOf(const LoadedModel& model, const Setting& setting) {
  EngineOptions options;
  options.layout = {.attention_dp = setting.ranks,
                    .attention_tp = setting.attention_tp,
                    .moe_ep = setting.ranks * setting.attention_tp / setting.moe_tp,
                    .moe_tp = setting.moe_tp};
  options.max_batch_size = setting.max_batch_size;
  options.max_num_tokens = setting.max_num_tokens;
  options.max_seq_len = kMaxSeqLen;
  const int max_draft_len = !setting.mtp      ? 0
                            : setting.vanilla ? model.config.num_nextn_predict_layers
                                              : setting.max_draft_len;
  if (DraftsInBlocks(model.config)) {
    UseDrafter(&kDSpark, std::min(max_draft_len, model.config.dspark->block_size), model.config, options);
  } else if (model.config.draft_head != nullptr) {
    UseDrafter(&kEagle3, max_draft_len, model.config, options);
  } else {
    UseDrafter(setting.vanilla ? &kVanilla : &kEagle, max_draft_len, model.config, options);
  }
  options.cuts_drafts = options.drafter == &kDSpark &&
                        (setting.policy == DraftPolicyKind::kConfidence || setting.verify_len > 0);
  options.tokens_per_block = kTokensPerBlock;
  options.kv_format = setting.kv_format;
  const int block_tokens = KvCacheShapeOf(options, model.config, 1).tokens_per_block();
  const int sequence_blocks = (kMaxSeqLen + 14) / block_tokens + 1;
  options.block_count = setting.small_pool ? 1 + std::max(kSmallPoolTokens / block_tokens, kSmallPoolBlocks)
                                           : 1 + setting.max_batch_size * sequence_blocks;
  options.batch_sizes = BatchSizes(setting.max_batch_size);
  options.capture_graphs = setting.graphs;
  if (!setting.padding) {
    options.captured_sizes = std::exchange(options.batch_sizes, std::vector<int>(setting.max_batch_size));
    std::iota(options.batch_sizes.begin(), options.batch_sizes.end(), 1);
  }
  options.reuse_generated = setting.reuse_generated;
  options.poison_cache = true;
  options.step_timeout = kRunLimit;
  return options;
}

SchedulerOptions SchedulerOptionsOf(const LoadedModel& model, const EngineOptions& engine,
                                    const Setting& setting) {
  SchedulerOptions options;
  options.rank_count = setting.ranks;
  if (const auto late = static_cast<uint32_t>(setting.late_percent); late > 0)
    options.masks_are_late = [late, random = std::mt19937(1)]() mutable { return random() % 100 < late; };
  const SwapStoreShape host = SwapStoreShapeOf(engine, model.config);
  options.max_batch_size = engine.max_batch_size;
  options.max_num_tokens = engine.max_num_tokens;
  options.max_seq_len = engine.max_seq_len;
  options.groups = CacheGroupShapesOf(engine, model.config);
  options.enable_block_reuse = setting.reuse;
  options.reuse_generated = engine.reuse_generated;
  options.host_frame_count = host.frame_count();
  options.host_image_frames = host.slot_frames();
  options.batch_sizes = engine.batch_sizes;
  options.max_draft_len = engine.max_draft_len;
  options.drafter = engine.drafter_requirements;
  options.draft_len = std::min(setting.draft_len, engine.max_draft_len);
  options.acceptance = setting.acceptance;
  options.draft_policy.kind = setting.policy;
  if (setting.policy == DraftPolicyKind::kSchedule) {
    options.draft_policy.schedule = {{2, options.draft_len}, {8, options.draft_len / 2}};
  }
  return options;
}

namespace {

ModelClass ClassOf(const LoadedModel& model) {
  return {.isa = model.device_options.isa,
          .nvfp4_inputs = model.config.nvfp4_inputs,
          .int8_inputs = model.device_options.int8_inputs};
}

}  // namespace

std::vector<std::unique_ptr<RankEngine>> CreateEngines(const LoadedModel& model, const EngineOptions& options,
                                                       bool shared_memory) {
  const int ranks = options.layout.world_size();
  std::vector<RankParts> parts;
  if (ranks == 1) {
    auto device = CreateDevice(TestBackend(), model.device_options);
    CHECK(device.ok());
    parts.push_back({*std::move(device), nullptr});
  } else {
    parts = ConnectRanks(ranks, options.step_timeout, model.device_options, shared_memory);
  }
  std::vector<const LoadedModel*> shards;
  for (int rank = 0; rank < ranks; ++rank) {
    const ModelShard shard = {.layout = options.layout, .rank = rank};
    shards.push_back(ranks == 1 ? &model : &LoadModelOnce(model.dir, TestBackend(), shard, ClassOf(model)));
  }
  std::vector<std::unique_ptr<RankEngine>> engines(ranks);
  ForEachRank(ranks, [&](int rank) {
    auto engine = RankEngine::Create(options, model.config, std::move(parts[rank].device),
                                     WeightsFor(shards[rank]->weights, options), std::move(parts[rank].comm));
    CHECK(engine.ok()) << engine.status().ToString();
    engines[rank] = *std::move(engine);
  });
  return engines;
}

RunRecord RunRequests(const LoadedModel& model, const Setting& setting, std::vector<Request> requests) {
  RunRecord record = {.requests = std::vector<RequestRecord>(requests.size()),
                      .requests_of_rank = std::vector<int>(setting.ranks),
                      .most_prefill_rows = std::vector<int>(setting.ranks)};
  const std::map<uint64_t, int> request_of_seed = Number(setting, requests);
  const EngineOptions engine_options = EngineOptionsOf(model, setting);
  LosableRanks ranks(model, engine_options, setting, record, request_of_seed);
  Gatherer gatherer(record, requests);
  SchedulerOptions scheduler_options = SchedulerOptionsOf(model, engine_options, setting);
  scheduler_options.resume = true;
  ServingLoop* running = nullptr;
  size_t change = 0;
  ServingLoop loop(
      {.overlap = setting.overlap}, std::make_unique<Scheduler>(scheduler_options), ranks.executors(),
      [&](const std::vector<RequestUpdate>& updates) {
        gatherer.Take(updates);
        if (IsLostNow(setting, record)) ranks.LoseOnce();
      },
      [&](const IterationStats&) {
        if (setting.draft_len_changes.empty()) return;
        const int draft_len = setting.draft_len_changes[change++ % setting.draft_len_changes.size()];
        running->SetSpeculation(
            WithDraftLen(scheduler_options, std::min(draft_len, engine_options.max_draft_len)));
      });
  running = &loop;
  // Without max_open all are there when the loop starts: a slow machine swaps and batches as a quick one.
  bool started = setting.max_open > 0;
  if (started) loop.Start();
  // Waits for the next loss that the setting asks for; false if there is none.
  auto restart_after_loss = [&, losses = setting.losses.size() + (setting.lost_at_token > 0)]() mutable {
    if (losses == 0 || !gatherer.WaitForLoss(loop)) return false;
    --losses;
    ranks.Start();
    loop.Restart();
    return true;
  };
  size_t unsubmitted = requests.size();
  for (Request& request : requests) {
    const bool turn_ends = setting.turn > 0 && unsubmitted + setting.turn == requests.size();
    if (turn_ends && !std::exchange(started, true)) loop.Start();
    if (setting.max_open > 0 || turn_ends) {
      const size_t most = turn_ends ? unsubmitted : unsubmitted + setting.max_open - 1;
      while (!gatherer.WaitForOpenOrLoss(most, loop)) {
        CHECK(!loop.health().ok() && restart_after_loss()) << setting.DebugString();
      }
    }
    --unsubmitted;
    request.arrival = std::chrono::steady_clock::now();
    absl::Status status = loop.Submit(request);
    // A rank may be lost before the last request is there: until its restart the loop takes no new ones.
    while (absl::IsUnavailable(status) && restart_after_loss()) status = loop.Submit(request);
    CHECK(status.ok()) << status.ToString();
  }
  if (!started) loop.Start();
  while (restart_after_loss()) continue;
  EXPECT_TRUE(gatherer.WaitForAll()) << "not all requests ended: " << setting.DebugString();
  loop.Stop();
  record.load = loop.load();
  return record;
}

}  // namespace foredraft
