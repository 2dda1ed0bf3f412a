#include "tools/validate_mtp/dspark_chain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "tools/validate_mtp/committed_drafts.h"
#include "tools/validate_mtp/dspark_check.h"
#include "tools/validate_mtp/mtp_contract.h"
#include "tools/validate_mtp/serving_drafter.h"
#include "tools/validate_mtp/step_ops.h"

namespace foredraft {
namespace {

constexpr int kRequests = kChainRequests;

// Sequence i, 0 .. kRequests - 1, is in slot i.
class DSparkChain {
 public:
  DSparkChain(MtpDevice& device, DSparkCheck& check, StepOps ops, const MtpCheckOptions& options,
              std::vector<std::vector<int32_t>> prompts)
      : device_(device), check_(check), ops_(ops), options_(options), prompts_(std::move(prompts)) {}

  absl::Status Run() {
    CommittedDrafts committed(device_);
    const int count = (options_.steps + 1) * (options_.draft_len + 1);
    for (const std::vector<int32_t>& prompt : prompts_) plain_.push_back(committed.Tokens(prompt, count));
    device_.PoisonCache();
    Prefill();
    for (int step = 0; step < options_.steps; ++step) RETURN_IF_ERROR(DecodeStep(step));
    for (int i = 0; i < kRequests; ++i) {
      tokens_.Add(emitted_[i],
                  std::vector<int32_t>(plain_[i].begin(), plain_[i].begin() + emitted_[i].size()));
    }
    return absl::OkStatus();
  }

  MtpCheckResult Result() const {
    MtpCheckResult result;
    result.boundaries = {verified_.result(), block_rows_.result()};
    for (const Boundary& boundary : check_.Results()) result.boundaries.push_back(boundary);
    result.boundaries.push_back(tokens_.result());
    for (const auto& prompt : prompts_) result.prompt_lens.push_back(static_cast<int>(prompt.size()));
    result.verified = verified_count_;
    result.accepted = accepted_count_;
    return result;
  }

 private:
  const DSparkShape& shape() const { return *device_.config().dspark; }
  int vocab_size() const { return device_.config().vocab_size; }

  // Runs the target and compares what it wrote for the stages. Returns its best token of every row.
  std::vector<int32_t> RunTarget(const DeviceRows& rows) {
    const std::vector<float> outputs = device_.Run(MtpDevice::Part::kTarget, rows);
    check_.AddContext(rows);
    return BestTokens(device_.Logits(0, outputs), vocab_size());
  }

  void Prefill() {
    DeviceRows rows = {.prefill = true};
    for (int i = 0; i < kRequests; ++i) {
      for (size_t position = 0; position < prompts_[i].size(); ++position) {
        rows.ids.push_back(prompts_[i][position]);
        rows.slots.push_back(i);
        rows.positions.push_back(static_cast<int>(position));
      }
    }
    const std::vector<int32_t> best = RunTarget(rows);
    size_t end = 0;
    for (const std::vector<int32_t>& prompt : prompts_) {
      emitted_.push_back({best[(end += prompt.size()) - 1]});
      lengths_.push_back(static_cast<int>(prompt.size()));
    }
    ops_.Begin(lengths_, LastTokens());
    MakeDrafts();
  }

  std::vector<int> LastTokens() const {
    std::vector<int> last;
    for (const std::vector<int32_t>& tokens : emitted_) last.push_back(tokens.back());
    return last;
  }

  // The blocks after the last tokens.
  DeviceRows Blocks() const {
    DeviceRows blocks;
    for (int i = 0; i < kRequests; ++i) {
      const DeviceRows block = BlockRowsOf(shape(), i, emitted_[i].back(), lengths_[i]);
      blocks.ids.insert(blocks.ids.end(), block.ids.begin(), block.ids.end());
      blocks.slots.insert(blocks.slots.end(), block.slots.begin(), block.slots.end());
      blocks.positions.insert(blocks.positions.end(), block.positions.begin(), block.positions.end());
    }
    return blocks;
  }

  // Runs a block per sequence, then chooses its drafts one after another.
  void MakeDrafts() {
    const std::vector<float> logits = check_.RunBlocks(Blocks());
    drafts_.clear();
    for (int i = 0; i < kRequests; ++i) {
      int before = emitted_[i].back();
      for (int row = 0; row < options_.draft_len; ++row) {
        const auto begin = logits.begin() + int64_t{i * shape().block_size + row} * vocab_size();
        const int draft = BestTokens(check_.AddBias({begin, begin + vocab_size()}, before), vocab_size())[0];
        check_.AddDraft(i, row, before, draft);
        drafts_.push_back(before = draft);
      }
    }
  }

  // The drafts to verify in this step: the first ones are right tokens, the rest are the block's drafts.
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
    const std::vector<int32_t> target =
        RunTarget({.ids = rows.ids, .slots = rows.slots, .positions = rows.positions, .previous = {}});
    const std::vector<StepOutput> outputs = ops_.VerifyDrafts(target, draft_len);
    ASSIGN_OR_RETURN(const std::vector<int32_t> expected,
                     VerifyMtpSpecTokens({{kRequests, draft_len}, {drafts.begin(), drafts.end()}},
                                         {{kRequests, draft_len + 1}, {target.begin(), target.end()}}));
    std::vector<int32_t> accepted;
    for (int i = 0; i < kRequests; ++i) {
      const StepOutput& output = outputs[i];
      accepted.push_back(output.emitted_count - 1);
      accepted_count_ += output.emitted_count - 1;
      verified_count_ += output.drafts_verified;
      emitted_[i].insert(emitted_[i].end(), output.token_ids, output.token_ids + output.emitted_count);
      lengths_[i] = output.length;
    }
    verified_.Add(accepted, expected);
    const StepRows made = ops_.DraftBlockRows(shape().block_size, shape().noise_token_id);
    const DeviceRows blocks = Blocks();
    block_rows_.Add(made.ids, blocks.ids);
    block_rows_.Add(made.slots, blocks.slots);
    block_rows_.Add(made.positions, blocks.positions);
    MakeDrafts();
    return absl::OkStatus();
  }

  MtpDevice& device_;
  DSparkCheck& check_;
  StepOps ops_;
  const MtpCheckOptions options_;
  const std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::vector<int32_t>> plain_;    // per sequence: its tokens without drafts
  std::vector<std::vector<int32_t>> emitted_;  // per sequence: its tokens so far
  std::vector<int> lengths_;                   // [kRequests]: P
  std::vector<int32_t> drafts_;                // [kRequests, K]: drafts of the blocks
  int64_t verified_count_ = 0, accepted_count_ = 0;
  CountBoundary verified_{"verify_mtp_spec_tokens", absl::StrFormat("[%d]", kRequests)};
  CountBoundary block_rows_{"draft_block_rows", absl::StrFormat("[%d]", kRequests* shape().block_size)};
  CountBoundary tokens_{"tokens", "as without drafts"};
};

absl::Status CheckDrafts(const DSparkShape& shape, int draft_len) {
  if (shape.stage_count == 0) {
    return absl::InvalidArgumentError(
        "compress_ratios: does not say how many DSpark stages there are, wanted a 0 for each, after the "
        "layers");
  }
  if (draft_len > shape.block_size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("drafts: %d, allowed 1..%d, dspark_block_size", draft_len, shape.block_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MtpCheckResult> CheckDSparkChain(const std::string& dir, const ModelConfig& config,
                                                Device& device, const LoadedWeights& weights,
                                                const MtpCheckOptions& options) {
  using reference::Weights;
  RETURN_IF_ERROR(CheckDrafts(*config.dspark, options.draft_len));
  ASSIGN_OR_RETURN(const Weights exact, Weights::Open(dir, config, Weights::Precision::kExact));
  ASSIGN_OR_RETURN(const Weights rounded, Weights::Open(dir, config, Weights::Precision::kBf16));
  ASSIGN_OR_RETURN(const auto prompts, ChainPrompts(config, options));
  const ServingCheckOptions serving = {.draft_len = options.draft_len, .steps = options.steps};
  const int block_size = config.dspark->block_size;
  int prompt_rows = 0;
  for (const std::vector<int32_t>& prompt : prompts) prompt_rows += static_cast<int>(prompt.size());
  const MtpDevice::Size size = {
      .slots = kRequests,
      .positions = static_cast<int>(prompts.back().size()) + ServedTokens(serving),
      .rows = std::max(prompt_rows, kRequests * std::max(options.draft_len + 1, block_size))};
  ASSIGN_OR_RETURN(const std::unique_ptr<MtpDevice> mtp, MtpDevice::Create(device, config, weights, size));
  ASSIGN_OR_RETURN(StepOps ops,
                   StepOps::Create(device, mtp->stream(), kRequests, config.vocab_size, size.positions));
  DSparkCheck check(*mtp, exact, rounded, kRequests, options.draft_len);
  DSparkChain chain(*mtp, check, ops, options, prompts);
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
