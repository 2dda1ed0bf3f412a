#include "tools/validate_mtp/serving_drafter.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/engine_shapes.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/rank_engine.h"
#include "engine/spec/drafter_kind.h"
#include "engine/spec/dspark/dspark_drafter.h"
#include "engine/spec/eagle/eagle_drafter.h"
#include "scheduler/scheduler.h"
#include "tools/validate_mtp/committed_drafts.h"
#include "tools/validate_mtp/drafter_cache.h"

namespace foredraft {
namespace {

using Prompts = std::vector<std::vector<int32_t>>;

// What an iteration takes of the prompts, one behind another, and when their last token is in.
struct PromptChunks {
  int rows = 0;
  int iterations = 0;
};

// The last prompt has three chunks, the last of them a few tokens: a module with a window still reads what
// lies before it.
PromptChunks ChunksOf(const ModelConfig& config, const Prompts& prompts) {
  const int tail =
      FindV4Shape(config) != nullptr ? std::clamp(V4ShapeOf(config).sliding_window / 2, 1, 4) : 4;
  size_t total = 0;
  for (const std::vector<int32_t>& prompt : prompts) total += prompt.size();
  const int count = static_cast<int>(total);
  const int rows = std::max((count - tail) / 2, 1);
  return {.rows = rows, .iterations = (count + rows - 1) / rows};
}

// K of an iteration. In some of them there are no drafts, as where a policy chooses none.
int DraftLenOf(int iteration, const ServingCheckOptions& check) {
  return iteration % kServedPeriod == kServedPeriod - 1 ? 0 : check.draft_len;
}

// Iterations until each prompt has had its decode steps: one without drafts at least, and one behind that.
int IterationsOf(const PromptChunks& chunks, const ServingCheckOptions& check) {
  const int needed = std::max(chunks.iterations - 1 + check.steps, kServedPeriod + 1);
  return DraftLenOf(needed - 1, check) == 0 ? needed + 1 : needed;
}

// One seat of the batch is padding.
EngineOptions EngineOptionsOf(const ModelConfig& config, const Prompts& prompts,
                              const ServingCheckOptions& check) {
  size_t longest = 0;
  for (const std::vector<int32_t>& prompt : prompts) longest = std::max(longest, prompt.size());
  EngineOptions options;
  options.max_batch_size = static_cast<int>(prompts.size());
  options.batch_sizes = {options.max_batch_size + 1};
  options.max_num_tokens = ChunksOf(config, prompts).rows;
  options.max_seq_len = static_cast<int>(longest) + ServedTokens(check);
  UseDrafter(config.dspark.has_value() ? &kDSpark : &kEagle, check.draft_len, config, options);
  const int block_tokens = KvCacheShapeOf(options, config, 1).tokens_per_block();
  const int sequence_blocks = (options.position_count() + check.draft_len) / block_tokens + 2;
  options.block_count = 1 + options.max_batch_size * sequence_blocks;
  options.host_cache_bytes = 0;
  options.poison_cache = true;
  return options;
}

SchedulerOptions SchedulerOptionsOf(const ModelConfig& config, const EngineOptions& engine) {
  SchedulerOptions options;
  options.max_batch_size = engine.max_batch_size;
  options.max_num_tokens = engine.max_num_tokens;
  options.max_seq_len = engine.max_seq_len;
  options.batching_wait_iters = 0;  // a prompt's next chunk does not wait
  options.groups = CacheGroupShapesOf(engine, config);
  options.enable_block_reuse = false;
  options.batch_sizes = engine.batch_sizes;
  options.max_draft_len = engine.max_draft_len;
  options.drafter = engine.drafter_requirements;
  options.draft_len = engine.max_draft_len;
  return options;
}

class ServingDrafter {
 public:
  ServingDrafter(RankEngine& engine, const SchedulerOptions& options, MtpDevice& device,
                 const Prompts& prompts, const ServingCheckOptions& check)
      : engine_(engine),
        stream_(engine.rank().device->CreateStream()),
        scheduler_(options),
        device_(device),
        expected_(device),
        check_(check),
        iterations_(IterationsOf(ChunksOf(device.config(), prompts), check)) {
    for (const std::vector<int32_t>& prompt : prompts) {
      requests_.push_back({.prompt_len = static_cast<int>(prompt.size()),
                           .tokens = prompt,
                           .plain = expected_.Tokens(prompt, ServedTokens(check))});
    }
  }

  absl::Status Run() {
    RETURN_IF_ERROR(Submit());
    for (int iteration = 0; iteration < iterations_; ++iteration) {
      draft_len_ = DraftLenOf(iteration, check_);
      scheduler_.SetSpeculation({.draft_len = draft_len_});
      if (iteration > 0) MakeDraftsRight(iteration);
      const IterationPlan plan = scheduler_.Plan(std::chrono::steady_clock::now());
      for (const SlotAdmission& admission : plan.ranks[0].admissions) {
        request_of_slot_[admission.slot] = static_cast<int>(admission.sampling.seed);
      }
      ASSIGN_OR_RETURN(const RankResult result, engine_.Run(plan, 0));
      for (const SlotResult& slot : result.slots) Note(slot);
      scheduler_.Commit({result});
    }
    return absl::OkStatus();
  }

  std::vector<Boundary> Results() const {
    return {drafts_.result(), cache_.result(), accepted_.result(), tokens_.result()};
  }

 private:
  struct Served {
    int prompt_len = 0;
    std::vector<int32_t> tokens;  // committed: the prompt, then what was emitted
    std::vector<int32_t> plain;   // what the target generates without drafts
    int right = 0;                // drafts of the next step that were made right and have rows in it

    int emitted() const { return static_cast<int>(tokens.size()) - prompt_len; }
  };

  absl::Status Submit() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      Request request;
      request.id = i;
      request.sampling.seed = i;  // by which an admission is recognised; greedy
      request.prompt_ids = requests_[i].tokens;
      request.max_tokens = ServedTokens(check_);
      request.arrival = std::chrono::steady_clock::now();
      RETURN_IF_ERROR(scheduler_.Submit(std::move(request)));
    }
    return absl::OkStatus();
  }

  SlotDrafts* DraftsAt(int slot) { return engine_.rank().slots.arrays().drafts + slot; }
  SlotDrafts ReadDrafts(int slot) {
    SlotDrafts drafts;
    engine_.rank().device->CopyToHost(*stream_, &drafts, DraftsAt(slot), sizeof(drafts));
    stream_->Synchronize();
    return drafts;
  }

  void MakeDraftsRight(int iteration) {
    for (const auto& [slot, index] : request_of_slot_) {
      Served& request = requests_[index];
      if (request.emitted() == 0) continue;  // its prompt has not ended
      SlotDrafts drafts = ReadDrafts(slot);
      request.right =
          std::min({(iteration + index) % (check_.draft_len + 1), drafts.draft_count, draft_len_});
      std::copy_n(request.plain.begin() + request.emitted(), request.right, drafts.tokens);
      engine_.rank().device->CopyToDevice(*stream_, DraftsAt(slot), &drafts, sizeof(drafts));
      stream_->Synchronize();
    }
  }

  // After a step: what it emitted, and the drafts that it left.
  void Note(const SlotResult& result) {
    Served& request = requests_[request_of_slot_.at(result.slot)];
    const std::vector<int32_t>& ids = result.token_ids;
    const auto plain = request.plain.begin() + request.emitted();
    tokens_.Add(ids, std::vector<int32_t>(plain, plain + static_cast<int64_t>(ids.size())));
    const int accepted = result.step_token_count() - 1;
    accepted_.Add(std::vector<int>{std::min(accepted, request.right)}, std::vector<int>{request.right});
    request.tokens.insert(request.tokens.end(), ids.begin(), ids.end());
    const SlotDrafts drafts = ReadDrafts(result.slot);
    drafts_.Add(std::vector<int32_t>(drafts.tokens, drafts.tokens + drafts.draft_count),
                expected_.Drafts(request.tokens, request.prompt_len, draft_len_));
    const int last = static_cast<int>(request.tokens.size()) - 1;
    const Rank& rank = engine_.rank();
    cache_.Add(ReadDrafterCache(*rank.device, *stream_, device_.config(), rank.cache, result.slot, last),
               ReadDrafterCache(device_.device(), device_.stream(), device_.config(), device_.cache(),
                                /*slot=*/0, last));
  }

  RankEngine& engine_;
  const std::unique_ptr<Stream> stream_;
  Scheduler scheduler_;
  MtpDevice& device_;  // which makes the drafts from scratch
  CommittedDrafts expected_;
  const ServingCheckOptions check_;
  const int iterations_;
  int draft_len_ = 0;  // K of the present iteration
  std::vector<Served> requests_;
  std::map<int, int> request_of_slot_;
  CountBoundary drafts_{"serving drafts", absl::StrFormat("[%d] per sequence and step", check_.draft_len)};
  CountBoundary cache_{"serving cache", "bytes per sequence and step"};
  CountBoundary accepted_{"serving acceptance", "of drafts made right"};
  CountBoundary tokens_{"serving tokens", "as without drafts"};
};

}  // namespace

absl::StatusOr<std::vector<Boundary>> CheckServingDrafter(Device& device, const ModelConfig& config,
                                                          const LoadedWeights& weights,
                                                          const Prompts& prompts,
                                                          const ServingCheckOptions& options) {
  const EngineOptions engine_options = EngineOptionsOf(config, prompts, options);
  ASSIGN_OR_RETURN(
      const std::unique_ptr<MtpDevice> mtp,
      MtpDevice::Create(
          device, config, weights,
          {.slots = 1, .positions = engine_options.position_count(), .rows = engine_options.max_seq_len}));
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  ASSIGN_OR_RETURN(std::unique_ptr<Device> own, CreateDevice("cpu", {.threads = std::max(threads, 1)}));
  ASSIGN_OR_RETURN(const std::unique_ptr<RankEngine> engine,
                   RankEngine::Create(engine_options, config, std::move(own), weights));
  ServingDrafter serving(*engine, SchedulerOptionsOf(config, engine_options), *mtp, prompts, options);
  RETURN_IF_ERROR(serving.Run());
  return serving.Results();
}

}  // namespace foredraft
