#include "tools/validate_mtp/mtp_chain.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/cache/cache_groups.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/model_kind.h"
#include "tools/validate_mtp/module_check.h"
#include "tools/validate_mtp/mtp_contract.h"
#include "tools/validate_mtp/serving_drafter.h"
#include "tools/validate_mtp/step_ops.h"

namespace foredraft {
namespace {

constexpr int kRequests = kChainRequests;
constexpr int kLongestPrompt = 40;  // a lower limit; more than a window has keys

std::vector<int64_t> Wide(const std::vector<int32_t>& values) { return {values.begin(), values.end()}; }

class MtpChain {
 public:
  MtpChain(MtpDevice& device, ModuleCheck& module, StepOps ops, const MtpCheckOptions& options,
           std::vector<std::vector<int32_t>> prompts)
      : device_(device), module_(module), ops_(ops), options_(options), prompts_(std::move(prompts)) {}

  // Sequence i, 0 .. kRequests - 1, is in slot i; slot kRequests + i generates the same sequence without
  // drafts.
  absl::Status Run() {
    plain_ = PlainTokens(options_.steps * (options_.draft_len + 1) + options_.draft_len + 1);
    RETURN_IF_ERROR(Prefill());
    for (int step = 0; step < options_.steps; ++step) RETURN_IF_ERROR(DecodeStep(step));
    for (int i = 0; i < kRequests; ++i) {
      tokens_.Add(emitted_[i],
                  std::vector<int32_t>(plain_[i].begin(), plain_[i].begin() + emitted_[i].size()));
    }
    return absl::OkStatus();
  }

  MtpCheckResult Result() const {
    MtpCheckResult result;
    for (const CountBoundary* const boundary :
         {&prefill_ids_, &restored_, &prefill_ids_cp_, &decode_rows_, &verified_, &mtp_ids_, &state_rows_}) {
      result.boundaries.push_back(boundary->result());
    }
    for (const Boundary& boundary : module_.Results()) result.boundaries.push_back(boundary);
    result.boundaries.push_back(tokens_.result());
    for (const auto& prompt : prompts_) result.prompt_lens.push_back(static_cast<int>(prompt.size()));
    result.verified = verified_count_;
    result.accepted = accepted_count_;
    return result;
  }

 private:
  int vocab_size() const { return device_.config().vocab_size; }

  // Appends rows of `tokens`, at positions from `first` on, in `slot`.
  static void Append(DeviceRows& rows, int slot, int first, const std::vector<int32_t>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      rows.ids.push_back(tokens[i]);
      rows.slots.push_back(slot);
      rows.positions.push_back(first + static_cast<int>(i));
    }
  }

  // Runs the target over all prompts and returns the token after each. The outputs stay in target_outputs_.
  std::vector<int32_t> TargetPrefill(int first_slot) {
    DeviceRows rows = {.prefill = true};
    for (int i = 0; i < kRequests; ++i) Append(rows, first_slot + i, 0, prompts_[i]);
    target_outputs_ = device_.Run(MtpDevice::Part::kTarget, rows);
    const std::vector<int32_t> best = BestTokens(device_.Logits(0, target_outputs_), vocab_size());
    std::vector<int32_t> next;
    for (size_t end = 0, i = 0; i < prompts_.size(); ++i)
      next.push_back(best[(end += prompts_[i].size()) - 1]);
    return next;
  }

  // The tokens that the target generates without drafts, from the token after the prompt on.
  std::vector<std::vector<int32_t>> PlainTokens(int count) {
    std::vector<int32_t> next = TargetPrefill(kRequests);
    std::vector<std::vector<int32_t>> tokens(kRequests);
    for (int step = 0; step < count; ++step) {
      DeviceRows rows;
      for (int i = 0; i < kRequests; ++i) {
        tokens[i].push_back(next[i]);
        Append(rows, kRequests + i, static_cast<int>(prompts_[i].size()) + step, {next[i]});
      }
      next = BestTokens(device_.Logits(0, device_.Run(MtpDevice::Part::kTarget, rows)), vocab_size());
    }
    return tokens;
  }

  // As in a server, the row of the sampled token runs in the decode form, after the prompt's rows.
  absl::Status Prefill() {
    const std::vector<int32_t> next = TargetPrefill(0);
    DeviceRows rows = {.prefill = true}, first;
    std::vector<int64_t> ids;
    auto output = target_outputs_.begin();
    const auto take = [&](DeviceRows& to) {
      to.previous.insert(to.previous.end(), output, output + device_.width());
      output += device_.width();
    };
    for (int i = 0; i < kRequests; ++i) {
      const std::vector<int32_t>& prompt = prompts_[i];
      Append(rows, i, 1, {prompt.begin() + 1, prompt.end()});
      for (size_t row = 1; row < prompt.size(); ++row) take(rows);
      Append(first, i, static_cast<int>(prompt.size()), {next[i]});
      take(first);
      ids.insert(ids.end(), prompt.begin() + 1, prompt.end());
      ids.push_back(next[i]);
      lengths_.push_back(static_cast<int>(prompt.size()));
      emitted_.push_back({next[i]});
    }
    RETURN_IF_ERROR(ComparePrefillIds(next, ids));
    last_tokens_.assign(next.begin(), next.end());
    ops_.Begin(lengths_, last_tokens_);
    state_ = {.spec_tokens = {{kRequests, options_.draft_len}, {}},
              .accepted_num = {},
              .kv_len = {lengths_.begin(), lengths_.end()},
              .is_prefill = true};
    module_.Run(rows, /*recycled=*/false);
    std::vector<int32_t> last_rows(kRequests);
    std::iota(last_rows.begin(), last_rows.end(), 0);
    return MakeDrafts(first, last_rows, /*prefill=*/true);
  }

  // Compares the ids that the contract's functions build for one rank, and for two context-parallel
  // partitions whose tokens alternate in a padded batch.
  absl::Status ComparePrefillIds(const std::vector<int32_t>& next, const std::vector<int64_t>& expected) {
    std::vector<int64_t> ids, lens, places;
    for (const auto& prompt : prompts_) {
      ids.insert(ids.end(), prompt.begin(), prompt.end());
      lens.push_back(static_cast<int64_t>(prompt.size()));
    }
    ASSIGN_OR_RETURN(const std::vector<int64_t> shifted, BuildMtpPrefillInputIds(ids, lens, Wide(next)));
    prefill_ids_.Add(shifted, expected);
    std::vector<int64_t> reversed = Wide(next), indices(next.size());
    std::reverse(reversed.begin(), reversed.end());
    std::iota(indices.rbegin(), indices.rend(), 0);
    ASSIGN_OR_RETURN(const std::vector<int64_t> restored,
                     RestoreCpPrefillNextTokens(reversed, indices, static_cast<int64_t>(next.size())));
    restored_.Add(restored, next);
    std::vector<int64_t> padded(2 * ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      places.push_back(static_cast<int64_t>(2 * i));
      padded[2 * i] = expected[i];
    }
    ASSIGN_OR_RETURN(
        const std::vector<int64_t> scattered,
        BuildMtpPrefillInputIdsCp(ids, lens, places, static_cast<int64_t>(padded.size()), restored));
    prefill_ids_cp_.Add(scattered, padded);
    return absl::OkStatus();
  }

  // The drafts to verify in this step: the first ones are right tokens, the rest are the module's drafts.
  std::vector<int32_t> DraftsOf(int step) const {
    std::vector<int32_t> drafts = drafts_;
    for (int i = 0; i < kRequests; ++i) {
      const int right = (step + i) % (options_.draft_len + 1);
      std::copy_n(plain_[i].begin() + emitted_[i].size(), right, drafts.begin() + i * options_.draft_len);
    }
    return drafts;
  }

  absl::Status DecodeStep(int step) {
    const int draft_len = options_.draft_len;
    const std::vector<int32_t> drafts = DraftsOf(step);
    ops_.SetDrafts(drafts, draft_len);
    const StepRows rows = ops_.DecodeRows(draft_len);
    std::vector<int64_t> kv_len, accepted(kRequests, 0);
    for (const int length : lengths_) kv_len.push_back(length + draft_len);
    const std::vector<int64_t> current(last_tokens_.begin(), last_tokens_.end()), spec = Wide(drafts);
    ASSIGN_OR_RETURN(const MainDecodeInputs inputs,
                     BuildMainDecodeInputIdsForMtp({current, spec, accepted, kv_len}, draft_len));
    decode_rows_.Add(rows.ids, inputs.input_ids);
    decode_rows_.Add(rows.positions, inputs.position_ids);

    target_outputs_ = device_.Run(MtpDevice::Part::kTarget,
                                  {.ids = rows.ids, .slots = rows.slots, .positions = rows.positions});
    const std::vector<int32_t> target = BestTokens(device_.Logits(0, target_outputs_), vocab_size());
    const TokenArray main_next = {{kRequests, draft_len + 1}, Wide(target)};
    const std::vector<StepOutput> outputs = ops_.VerifyDrafts(target, draft_len);
    ASSIGN_OR_RETURN(const std::vector<int32_t> expected,
                     VerifyMtpSpecTokens({{kRequests, draft_len}, spec}, main_next));
    Advance(outputs, expected);

    const StepRows emitted = ops_.EmittedRows(draft_len);
    CompareEmittedRows(emitted, BuildMtpDecodeInputIds(main_next), inputs.position_ids);
    state_ = {.spec_tokens = {{kRequests, draft_len}, std::vector<int64_t>(kRequests * draft_len)},
              .accepted_num = {},
              .kv_len = {lengths_.begin(), lengths_.end()}};
    return MakeDrafts({.ids = emitted.ids,
                       .slots = emitted.slots,
                       .positions = emitted.positions,
                       .previous = target_outputs_},
                      emitted.last_row, /*prefill=*/false);
  }

  void Advance(const std::vector<StepOutput>& outputs, const std::vector<int32_t>& expected) {
    std::vector<int32_t> accepted;
    for (int i = 0; i < kRequests; ++i) {
      const StepOutput& output = outputs[i];
      accepted.push_back(output.emitted_count - 1);
      accepted_count_ += output.emitted_count - 1;
      verified_count_ += output.drafts_verified;
      emitted_[i].insert(emitted_[i].end(), output.token_ids, output.token_ids + output.emitted_count);
      lengths_[i] = output.length;
      last_tokens_[i] = emitted_[i].back();
    }
    verified_.Add(accepted, expected);
  }

  // Compares the rows of emitted tokens. Their positions are one higher than the contract's, which uses the
  // positions of the target's rows.
  void CompareEmittedRows(const StepRows& rows, const std::vector<int64_t>& ids,
                          const std::vector<int32_t>& positions) {
    std::vector<int64_t> expected, given;
    for (size_t row = 0; row < rows.ids.size(); ++row) {
      if (rows.slots[row] < 0) continue;
      given.insert(given.end(), {rows.ids[row], rows.positions[row]});
      expected.insert(expected.end(), {ids[row], positions[row] + 1});
    }
    mtp_ids_.Add(given, expected);
  }

  // Makes K drafts per sequence: the first from the rows with the target's outputs, the others by recycling.
  // `last_rows` has each sequence's last row. prefill: these are the first drafts, which no slot has yet.
  absl::Status MakeDrafts(const DeviceRows& rows, const std::vector<int32_t>& last_rows, bool prefill) {
    MtpChainResult result = module_.Run(rows, /*recycled=*/false);
    std::vector<int32_t> from = last_rows;
    drafts_.assign(static_cast<size_t>(kRequests) * options_.draft_len, 0);
    for (int draft = 1; draft <= options_.draft_len; ++draft) {
      const std::vector<int32_t> all = BestTokens(result.logits, vocab_size());
      DeviceRows next = {.list_rows = last_rows};
      std::vector<int32_t> ids;
      for (int i = 0; i < kRequests; ++i) {
        ids.push_back(all[from[i]]);
        module_.AddDraft(i, ids[i]);
        drafts_[i * options_.draft_len + draft - 1] = ids[i];
        const auto output = result.outputs.begin() + int64_t{from[i]} * device_.width();
        next.previous.insert(next.previous.end(), output, output + device_.width());
      }
      RETURN_IF_ERROR(UpdateState(ids, draft));
      if (!prefill) ops_.StoreDrafts(ids, draft);
      if (draft == options_.draft_len) break;
      if (prefill) {
        for (int i = 0; i < kRequests; ++i) Append(next, i, lengths_[i] + draft, {ids[i]});
      } else {
        const StepRows made = ops_.NextDraftRows(ids, draft);
        next.ids = made.ids;
        next.slots = made.slots;
        next.positions = made.positions;
        // The contract's kv_len after draft i is the position of draft i's row.
        mtp_ids_.Add(Wide(made.positions), state_.kv_len);
      }
      result = module_.Run(next, /*recycled=*/true);
      std::iota(from.begin(), from.end(), 0);
    }
    state_rows_.Add(prefill ? drafts_ : ops_.Drafts(options_.draft_len), state_.spec_tokens.values);
    return absl::OkStatus();
  }

  absl::Status UpdateState(const std::vector<int32_t>& ids, int draft) {
    state_.accepted_num.assign(kRequests, draft - 1);
    MtpStepResult step = {.sampled_tokens = TokenArray{{kRequests}, Wide(ids)}};
    step.next_n = options_.draft_len;
    ASSIGN_OR_RETURN(state_, UpdateMtpStateAfterStep(state_, step));
    return absl::OkStatus();
  }

  static std::string PerRequest(int columns) { return absl::StrFormat("[%d, %d]", kRequests, columns); }

  MtpDevice& device_;
  ModuleCheck& module_;
  StepOps ops_;
  const MtpCheckOptions options_;
  const std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::vector<int32_t>> plain_;    // per sequence: its tokens without drafts
  std::vector<std::vector<int32_t>> emitted_;  // per sequence: its tokens so far
  std::vector<int> lengths_, last_tokens_;     // [kRequests]
  std::vector<int32_t> drafts_;                // [kRequests, K]: drafts of the module
  std::vector<float> target_outputs_;          // [rows, W] of the last target forward
  MtpState state_;
  int64_t verified_count_ = 0, accepted_count_ = 0;

  const int prompt_rows_ =
      std::accumulate(prompts_.begin(), prompts_.end(), 0,
                      [](int sum, const auto& prompt) { return sum + static_cast<int>(prompt.size()); });
  CountBoundary prefill_ids_{"build_mtp_prefill_input_ids", absl::StrFormat("[%d]", prompt_rows_)};
  CountBoundary restored_{"restore_cp_prefill_next_tokens", absl::StrFormat("[%d]", kRequests)};
  CountBoundary prefill_ids_cp_{"build_mtp_prefill_input_ids_cp", absl::StrFormat("[%d]", 2 * prompt_rows_)};
  CountBoundary decode_rows_{"build_main_decode_input_ids_for_mtp", PerRequest(options_.draft_len + 1)};
  CountBoundary verified_{"verify_mtp_spec_tokens", absl::StrFormat("[%d]", kRequests)};
  CountBoundary mtp_ids_{"build_mtp_decode_input_ids", PerRequest(options_.draft_len + 1)};
  CountBoundary state_rows_{"update_mtp_state_after_step", PerRequest(options_.draft_len)};
  CountBoundary tokens_{"tokens", "as without drafts"};
};

}  // namespace

bool MtpCheckResult::ok() const {
  return std::all_of(boundaries.begin(), boundaries.end(),
                     [](const Boundary& boundary) { return boundary.ok(); });
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ChainPrompts(const ModelConfig& config,
                                                               const MtpCheckOptions& options) {
  const int generated = ServedTokens({.draft_len = options.draft_len, .steps = options.steps});
  int longest = kLongestPrompt;
  for (const CacheGroup& group : CacheGroupsOf(config, 1, /*tokens_per_block=*/32)) {
    longest = std::max(longest, group.lookback + 9);
  }
  // Past index_topk positions a module selects.
  if (config.runs_indexer && FindV4Shape(config) == nullptr)
    longest = std::max(longest, config.index_topk + 9);
  const int longest_sequence = config.longest_sequence();
  const int room = longest_sequence - generated;
  if (room < 6) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d, allowed at least %d for %d steps with %d drafts",
        longest_sequence < config.max_position_embeddings ? "index_topk" : "max_position_embeddings",
        longest_sequence, generated + 6, options.steps, options.draft_len));
  }
  std::mt19937_64 random(options.seed);
  std::vector<std::vector<int32_t>> prompts;
  for (const int length : {5, 1, std::min(longest, room)}) {
    std::vector<int32_t>& prompt = prompts.emplace_back();
    for (int i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(random() % config.vocab_size));
  }
  return prompts;
}

absl::StatusOr<MtpCheckResult> CheckMtpChain(const std::string& dir, const ModelConfig& config,
                                             Device& device, const LoadedWeights& weights,
                                             const MtpCheckOptions& options) {
  using reference::Weights;
  ASSIGN_OR_RETURN(const Weights exact, Weights::Open(dir, config, Weights::Precision::kExact));
  ASSIGN_OR_RETURN(const Weights rounded, Weights::Open(dir, config, Weights::Precision::kBf16));
  const ServingCheckOptions serving = {.draft_len = options.draft_len, .steps = options.steps};
  const int generated = ServedTokens(serving);  // enough for the chain
  ASSIGN_OR_RETURN(const auto prompts, ChainPrompts(config, options));
  const int longest = static_cast<int>(prompts.back().size());
  const MtpDevice::Size size = {.slots = 2 * kRequests,
                                .positions = longest + generated,
                                .rows = std::max(longest + 6, kRequests * (options.draft_len + 1))};
  ASSIGN_OR_RETURN(const std::unique_ptr<MtpDevice> mtp, MtpDevice::Create(device, config, weights, size));
  ASSIGN_OR_RETURN(StepOps ops,
                   StepOps::Create(device, mtp->stream(), kRequests, config.vocab_size, size.positions));
  ModuleCheck module(*mtp, exact, rounded, kRequests * (options.draft_len + 1));
  MtpChain chain(*mtp, module, ops, options, prompts);
  RETURN_IF_ERROR(chain.Run());
  ASSIGN_OR_RETURN(const std::vector<Boundary> served,
                   CheckServingDrafter(device, config, weights, prompts, serving));
  RETURN_IF_ERROR(exact.status());
  RETURN_IF_ERROR(rounded.status());
  RETURN_IF_ERROR(device.status());
  MtpCheckResult result = chain.Result();
  result.boundaries.insert(result.boundaries.end(), served.begin(), served.end());
  return result;
}

}  // namespace foredraft
