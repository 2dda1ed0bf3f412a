#include "engine/spec/dspark/dspark_drafter.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/model/block_draft_model.h"
#include "engine/spec/draft_picker.h"
#include "engine/spec/step_context.h"

namespace foredraft {
namespace {

// Every rank's count of `rows` times `factor`; all 0 if `rows` is null.
RankRows Times(int factor, const RankRows* rows) {
  RankRows product;
  if (rows != nullptr) product = *rows;
  for (int32_t& count : product.rows) count *= factor;
  return product;
}

// The block always has all its rows, even where fewer drafts are wanted: its rows attend each other, so a
// narrower block would give other drafts.
class DSparkDrafter : public Drafter {
 public:
  static absl::StatusOr<std::unique_ptr<Drafter>> Create(const DrafterSetup& setup);

  void Prompt(const StepContext&, SlotState&, const ChunkRows&, const RankRows&) const override {}
  void FirstDraft(const StepContext& step, const DraftInput& input, int draft_count) const override {
    Draft(step, input, draft_count);
  }
  void Draft(const StepContext& step, const DraftInput& input, int draft_count) const override;

 private:
  void RunBlocks(const StepContext& step, const DraftInput& input) const;

  int block_rows_ = 0;  // G
  int noise_id_ = 0;
  int stage_count_ = 0;
  bool confidences_ = false;       // whether anything reads confidences
  RowBuffers rows_;                // [B * G]
  int32_t* anchor_ids_ = nullptr;  // [B]: the token that the first draft follows
  Matrix<float> streams_;          // [B * G, W]: of the blocks
  Matrix<float> draft_rows_;       // [Kmax * B, W]: rows 0..K-1 of the blocks, all sequences' row 0 first
  DraftPicker picker_;
};

absl::StatusOr<std::unique_ptr<Drafter>> DSparkDrafter::Create(const DrafterSetup& setup) {
  Device& device = setup.device;
  const EngineOptions& options = setup.options;
  const ModelConfig& model = setup.config();
  CHECK(model.dspark) << model.architecture << " has no stages";
  const DSparkShape& shape = *model.dspark;
  const int bucket = options.batch_sizes.back();
  const int rows = bucket * shape.block_size;
  auto drafter = std::make_unique<DSparkDrafter>();
  drafter->block_rows_ = shape.block_size;
  drafter->noise_id_ = shape.noise_token_id;
  drafter->stage_count_ = shape.stage_count;
  drafter->confidences_ = options.cuts_drafts;
  RETURN_IF_ERROR(AllocateBuffer(device, rows, drafter->rows_));
  RETURN_IF_ERROR(AllocateBuffer(device, bucket, drafter->anchor_ids_));
  RETURN_IF_ERROR(AllocateBuffer(device, rows, OutputWidth(model), drafter->streams_));
  RETURN_IF_ERROR(
      AllocateBuffer(device, bucket * options.max_draft_len, OutputWidth(model), drafter->draft_rows_));
  ASSIGN_OR_RETURN(drafter->picker_, DraftPicker::Create(device, bucket));
  return drafter;
}

// streams_ = the last stage's output.
void DSparkDrafter::RunBlocks(const StepContext& step, const DraftInput& input) const {
  step.ops().draft_block_rows(step.stream, {.ids = rows_.ids,
                                            .row_slots = rows_.slots,
                                            .positions = rows_.positions,
                                            .anchor_ids = anchor_ids_,
                                            .outputs = input.outputs,
                                            .bucket = input.bucket,
                                            .block_rows = block_rows_,
                                            .noise_id = noise_id_});
  const int rows = input.bucket * block_rows_;
  const Matrix<float> streams = streams_.first_rows(rows);
  const RankRows block_rows = Times(block_rows_, input.rank_rows);
  for (int stage = 0; stage < stage_count_; ++stage) {
    step.model.RunModule(step.stream, stage,
                         {.index = rows_.index(rows),
                          .ids = rows_.ids,
                          .previous = streams,
                          .rank_rows = input.rank_rows == nullptr ? nullptr : &block_rows},
                         step.cache, streams);
  }
}

void DSparkDrafter::Draft(const StepContext& step, const DraftInput& input, int draft_count) const {
  if (draft_count == 0) return;
  const BlockDraftModel* const blocks = step.model.block_drafts();
  CHECK(blocks != nullptr) << step.model.config().architecture << " has no stages";
  const Ops& ops = step.ops();
  Stream& stream = step.stream;
  const int bucket = input.bucket;
  RunBlocks(step, input);
  for (int draft = 0; draft < draft_count; ++draft) {
    const Matrix<float> rows = {streams_.row(draft), bucket, streams_.cols, block_rows_ * streams_.stride};
    ops.copy_rows(stream, {.out = draft_rows_.row_range(draft * bucket, bucket), .x = rows, .rows = bucket});
  }
  // All drafts share one product with the head; only the Markov bias needs the draft before.
  const Matrix<float> logits = step.buffers.logits.first_rows(draft_count * bucket);
  const RankRows rank_rows = Times(draft_count, input.rank_rows);
  step.model.Logits(stream, stage_count_, draft_rows_.first_rows(draft_count * bucket), logits,
                    input.rank_rows == nullptr ? nullptr : &rank_rows);
  const Matrix<float> bias = step.buffers.sample_scratch.first_rows(bucket);
  for (int draft = 1; draft <= draft_count; ++draft) {
    const Matrix<float> own = logits.row_range((draft - 1) * bucket, bucket);
    blocks->MarkovBias(stream, draft == 1 ? anchor_ids_ : picker_.draft_ids(), bias);
    ops.add(stream, {.out = own, .x = bias});
    if (confidences_) {
      blocks->Confidence(
          stream, (draft - 1) * bucket,
          {.outputs = input.outputs, .slots = step.slots.arrays(), .bucket = bucket, .draft_index = draft});
    }
    picker_.Pick(step, input, draft, own);
  }
}

bool Selected(const SpeculativeConfig& config) { return config.decoding_type == DecodingType::kDSpark; }

void Check(const LoadedConfig& loaded, const ModelConfig& model, ConfigErrors& errors) {
  const SpeculativeConfig& config = *loaded.config.speculative_config;
  const auto refuse = [&](const std::string& path, const std::string& value, const std::string& allowed) {
    if (!errors.Refused(path)) errors.Add(path, RefuseKey(loaded, path, value, allowed));
  };
  if (!model.dspark) {
    return refuse("speculative_config.decoding_type", NameOf(config.decoding_type),
                  absl::StrCat(NameOf(DecodingType::kMtp), ": this checkpoint has no DSpark stages"));
  }
  if (config.use_mtp_vanilla) {
    refuse("speculative_config.use_mtp_vanilla", "true", "false with decoding_type DSpark");
  }
  if (model.dspark->stage_count == 0) {
    return refuse(
        "speculative_config.decoding_type", NameOf(config.decoding_type),
        "MTP without drafts: compress_ratios of config.json does not say how many DSpark stages there are (a "
        "0 for each, after the layers)");
  }
  const int block_size = model.dspark->block_size;
  if (config.max_draft_len > block_size) {
    refuse("speculative_config.max_draft_len", absl::StrCat(config.max_draft_len),
           absl::StrFormat("0..%d, dspark_block_size", block_size));
  }
}

// No rows ahead: the target's rows write the stages' context, up to p + K, and blocks are not cached. A model
// without stages, which Check refuses, requires nothing.
DrafterRequirements Requirements(const ModelConfig& model, int /*max_draft_len*/) {
  if (!model.dspark) return {};
  return {.module_count = model.dspark->stage_count, .block_rows = model.dspark->block_size};
}

std::vector<SlotRow> SlotRows(const EngineOptions&, const ModelConfig&) { return {}; }

}  // namespace

const DrafterKind kDSpark = {.name = "dspark",
                             .selected = Selected,
                             .check = Check,
                             .requirements = Requirements,
                             .slot_rows = SlotRows,
                             .create = DSparkDrafter::Create};

}  // namespace foredraft
