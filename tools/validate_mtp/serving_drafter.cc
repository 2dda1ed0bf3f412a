#include "tools/validate_mtp/serving_drafter.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "tools/validate_mtp/committed_drafts.h"
#include "tools/validate_mtp/drafter_cache.h"

namespace foredraft {
namespace {

class ServingDrafter {
 public:
  ServingDrafter(ServingEngine& engine, MtpDevice& device, const Prompts& prompts,
                 const ServingCheckOptions& check)
      : engine_(engine), device_(device), expected_(device), check_(check), prompts_(prompts) {
    for (const std::vector<int32_t>& prompt : prompts) {
      requests_.push_back({.prompt_len = static_cast<int>(prompt.size()),
                           .tokens = prompt,
                           .plain = expected_.Tokens(prompt, ServedTokens(check))});
    }
  }

  absl::Status Run() {
    const std::vector<SamplingParams> greedy(prompts_.size());
    return engine_.Run(
        prompts_, greedy, [&](int iteration) { MakeDraftsRight(iteration); },
        [&](int request, const SlotResult& result) { Note(requests_[request], result); });
  }

  std::vector<Boundary> Results() const {
    return {drafts_.result(), cache_.result(), accepted_.result(), tokens_.result()};
  }

 private:
  struct Served {
    int prompt_len = 0;
    std::vector<int32_t> tokens;  // committed: the prompt, then what was emitted
    std::vector<int32_t> plain;   // the tokens that the target generates without drafts
    int right = 0;                // drafts with rows in the next step that were replaced by right tokens

    int emitted() const { return static_cast<int>(tokens.size()) - prompt_len; }
  };

  void MakeDraftsRight(int iteration) {
    for (const auto& [slot, index] : engine_.request_of_slot()) {
      Served& request = requests_[index];
      if (request.emitted() == 0) continue;  // its prompt has not ended
      SlotDrafts drafts = engine_.ReadDrafts(slot);
      request.right =
          std::min({(iteration + index) % (check_.draft_len + 1), drafts.draft_count, engine_.draft_len()});
      std::copy_n(request.plain.begin() + request.emitted(), request.right, drafts.tokens);
      engine_.WriteDrafts(slot, drafts);
    }
  }

  // Called after a step: compares the tokens that it emitted and the drafts that it made.
  void Note(Served& request, const SlotResult& result) {
    const std::vector<int32_t>& ids = result.token_ids;
    const auto plain = request.plain.begin() + request.emitted();
    tokens_.Add(ids, std::vector<int32_t>(plain, plain + static_cast<int64_t>(ids.size())));
    const int accepted = result.step_token_count() - 1;
    accepted_.Add(std::vector<int>{std::min(accepted, request.right)}, std::vector<int>{request.right});
    request.tokens.insert(request.tokens.end(), ids.begin(), ids.end());
    const SlotDrafts drafts = engine_.ReadDrafts(result.slot);
    drafts_.Add(std::vector<int32_t>(drafts.tokens, drafts.tokens + drafts.draft_count),
                expected_.Drafts(request.tokens, request.prompt_len, engine_.draft_len()));
    const int last = static_cast<int>(request.tokens.size()) - 1;
    const Rank& rank = engine_.rank();
    cache_.Add(
        ReadDrafterCache(*rank.device, engine_.stream(), device_.config(), rank.cache, result.slot, last),
        ReadDrafterCache(device_.device(), device_.stream(), device_.config(), device_.cache(),
                         /*slot=*/0, last));
  }

  ServingEngine& engine_;
  MtpDevice& device_;  // makes the drafts from scratch
  CommittedDrafts expected_;
  const ServingCheckOptions check_;
  const Prompts& prompts_;
  std::vector<Served> requests_;
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
  ASSIGN_OR_RETURN(const std::unique_ptr<ServingEngine> engine,
                   ServingEngine::Create(config, weights, prompts, options));
  ASSIGN_OR_RETURN(
      const std::unique_ptr<MtpDevice> mtp,
      MtpDevice::Create(device, config, weights,
                        {.slots = 1, .positions = engine->position_count(), .rows = engine->max_seq_len()}));
  ServingDrafter serving(*engine, *mtp, prompts, options);
  RETURN_IF_ERROR(serving.Run());
  return serving.Results();
}

}  // namespace foredraft
