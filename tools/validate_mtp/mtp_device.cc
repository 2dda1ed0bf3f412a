#include "tools/validate_mtp/mtp_device.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/cache/cache_groups.h"
#include "engine/model/block_draft_model.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/draft_head.h"
#include "engine/model/model_kind.h"
#include "tools/validate_mtp/drafter_cache.h"

namespace foredraft {
namespace {

// The spans of adjacent rows of one slot; none outside the prefill form.
std::vector<PrefillSpan> SpansOf(const DeviceRows& rows) {
  std::vector<PrefillSpan> spans;
  for (int row = 0; rows.prefill && row < rows.count(); ++row) {
    if (row == 0 || rows.slots[row] != rows.slots[row - 1]) {
      spans.push_back({rows.slots[row], row, 0, rows.positions[row]});
    }
    ++spans.back().row_count;
  }
  return spans;
}

ForwardCapacity CapacityOf(const MtpDevice::Size& size) {
  return {.rows = size.rows, .decode_rows = size.rows, .positions = size.positions};
}

}  // namespace

std::vector<int32_t> BestTokens(const std::vector<float>& logits, int vocab_size) {
  std::vector<int32_t> best;
  for (auto row = logits.begin(); row != logits.end(); row += vocab_size) {
    best.push_back(static_cast<int32_t>(std::max_element(row, row + vocab_size) - row));
  }
  return best;
}

DeviceRows BlockRowsOf(const DSparkShape& shape, int slot, int token, int position) {
  DeviceRows rows;
  for (int i = 0; i < shape.block_size; ++i) {
    rows.ids.push_back(i == 0 ? token : shape.noise_token_id);
    rows.slots.push_back(slot);
    rows.positions.push_back(position + i);
  }
  return rows;
}

absl::StatusOr<std::unique_ptr<MtpDevice>> MtpDevice::Create(Device& device, const ModelConfig& config,
                                                             LoadedWeights weights, const Size& size) {
  std::unique_ptr<MtpDevice> created(new MtpDevice(device, config, size));
  RETURN_IF_ERROR(created->Allocate(std::move(weights)));
  RETURN_IF_ERROR(created->AllocateCache());
  return created;
}

absl::Status MtpDevice::Allocate(LoadedWeights weights) {
  if (const V4Weights* const v4 = weights.Find<V4Weights>()) {
    if (!v4->modules.empty()) module_ = v4->modules.front();
    if (!v4->dspark.stages.empty()) layers_ = v4->layers;
    embed_ = v4->embed;
  }
  const std::shared_ptr<const LoadedWeights> of_head = weights.drafter();
  ASSIGN_OR_RETURN(model_,
                   config_.kind->create(device_, comm_, config_, std::move(weights), CapacityOf(size_)));
  if (of_head != nullptr) RETURN_IF_ERROR(AllocateHead(*of_head));
  v3_ = dynamic_cast<DeepseekV3*>(model_.get());
  v4_ = dynamic_cast<DeepseekV4*>(model_.get());
  ASSIGN_OR_RETURN(ids_, device_.AllocateArray<int32_t>(size_.rows));
  ASSIGN_OR_RETURN(slots_, device_.AllocateArray<int32_t>(size_.rows));
  ASSIGN_OR_RETURN(positions_, device_.AllocateArray<int32_t>(size_.rows));
  ASSIGN_OR_RETURN(list_rows_, device_.AllocateArray<int32_t>(size_.rows));
  const auto matrix = [&](int columns, Matrix<float>& out) -> absl::Status {
    ASSIGN_OR_RETURN(float* const data,
                     device_.AllocateArray<float>(static_cast<size_t>(size_.rows) * columns));
    out = Dense(data, size_.rows, columns);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(matrix(width(), previous_));
  RETURN_IF_ERROR(matrix(width(), output_));
  return matrix(config_.vocab_size, logits_);
}

absl::Status MtpDevice::AllocateHead(const LoadedWeights& weights) {
  ASSIGN_OR_RETURN(head_, Eagle3Head::Create(device_, *model_, *weights.Find<Eagle3Weights>(),
                                             CapacityOf(size_), DType::kBF16));
  model_->draft_target()->SetLayerReader(this);
  return absl::OkStatus();
}

// Passes the layer to the head, and keeps a copy if the head reads it.
void MtpDevice::Read(Stream& stream, int layer, Matrix<const float> hidden) const {
  head_->Read(stream, layer, hidden);
  const std::vector<int>& taps = config_.draft_head->taps;
  if (std::find(taps.begin(), taps.end(), layer) != taps.end()) read_layers_.push_back(GetFloats(hidden));
}

// Every slot gets its own blocks of every group, in descending order, after block 0 (scratch).
absl::Status MtpDevice::AllocateCache() {
  constexpr int kTokensPerBlock = 32;
  std::vector<int> block_counts;
  std::vector<CacheGroupTable> tables;
  for (const CacheGroup& group : CacheGroupsOf(config_, model_->module_count(), kTokensPerBlock)) {
    const int per_slot = (size_.positions + group.tokens_per_block - 1) / group.tokens_per_block;
    std::vector<int32_t> table(static_cast<size_t>(size_.slots) * per_slot);
    std::iota(table.rbegin(), table.rend(), 1);
    ASSIGN_OR_RETURN(int32_t* const memory, device_.AllocateArray<int32_t>(table.size()));
    Put(memory, table);
    tables.push_back({.entries = memory, .stride = per_slot});
    block_counts.push_back(static_cast<int>(table.size()) + 1);
  }
  const KvCacheShape shape = {.groups = CacheGroupsOf(config_, model_->module_count(), kTokensPerBlock),
                              .block_counts = block_counts,
                              .boundaries = {}};
  ASSIGN_OR_RETURN(cache_, KvCache::Create(device_, shape, tables, /*poison=*/true));
  return absl::OkStatus();
}

void MtpDevice::Submit(Part part, int module, const Batch& batch, Matrix<float> output) {
  if (part == Part::kTarget || part == Part::kFused) {
    read_layers_.clear();
    model_->RunTarget(*stream_, batch, cache_, output);
    if (part == Part::kFused) head_->Fuse(*stream_, batch.gemm_form(), output);
    return;
  }
  if (part == Part::kForward) return drafter().RunModule(*stream_, module, batch, cache_, output);
  CHECK(has_parts());
  const Forward f = v4_->ForwardOf(*stream_, batch);
  if (part == Part::kSeed) return SeedStreams(f, batch.previous.columns(0, config_.hidden_size), output);
  if (part == Part::kProjection) return ProjectStreams(f, module_, embed_, output);
  V4Layer(f, module_.layer, v4_->Context(cache_, config_.num_hidden_layers), output);
}

template <class T>
void MtpDevice::Put(T* to, const std::vector<T>& from) {
  device_.CopyToDevice(*stream_, to, from.data(), from.size() * sizeof(T));
}

void MtpDevice::PutRows(const DeviceRows& rows) {
  CHECK_LE(rows.count(), size_.rows);
  Put(ids_, rows.ids);
  Put(slots_, rows.slots);
  Put(positions_, rows.positions);
  Put(list_rows_, rows.list_rows);
}

Batch MtpDevice::BatchOf(const DeviceRows& rows, const std::vector<PrefillSpan>& spans) const {
  return {.index = {slots_, positions_, rows.count()},
          .ids = ids_,
          .previous = {},
          .list_rows = rows.list_rows.empty() ? nullptr : list_rows_,
          .spans = spans};
}

std::vector<float> MtpDevice::Run(Part part, const DeviceRows& rows, const std::vector<float>& streams) {
  return RunModule(part, 0, rows, streams);
}

std::vector<float> MtpDevice::Stage(int stage, const DeviceRows& blocks) {
  return RunModule(Part::kForward, stage, blocks, {});
}

std::vector<float> MtpDevice::RunModule(Part part, int module, const DeviceRows& rows,
                                        const std::vector<float>& streams) {
  PutRows(rows);
  Put(previous_.data, rows.previous);
  Put(output_.data, streams);
  const std::vector<PrefillSpan> spans = SpansOf(rows);
  Batch batch = BatchOf(rows, spans);
  if (part != Part::kTarget && part != Part::kFused) batch.previous = previous_.first_rows(rows.count());
  const Matrix<float> output = output_.first_rows(rows.count());
  Submit(part, module, batch, output);
  return GetFloats(output);
}

std::vector<float> MtpDevice::GetFloats(Matrix<const float> rows) const {
  std::vector<float> values(static_cast<size_t>(rows.rows) * rows.cols);
  device_.CopyToHost(*stream_, values.data(), rows.data, values.size() * sizeof(float));
  stream_->Synchronize();
  return values;
}

std::vector<float> MtpDevice::Get(Matrix<const bf16> rows) {
  std::vector<float> values;
  std::vector<bf16> row(rows.cols);
  for (int r = 0; r < rows.rows; ++r) {
    device_.CopyToHost(*stream_, row.data(), rows.row(r), row.size() * sizeof(bf16));
    stream_->Synchronize();
    for (const bf16 value : row) values.push_back(ToFloat(value));
  }
  return values;
}

std::vector<float> MtpDevice::Taps(int rows) { return Get(v4_->dspark_activations().taps.first_rows(rows)); }

// The keys are made from these rows, and nothing later in the forward overwrites them.
std::vector<float> MtpDevice::MainX(int rows) {
  return Get(v4_->ForwardOf(*stream_, Batch{}).activations.normed.as_bf16.first_rows(rows));
}

std::vector<float> MtpDevice::StageKeys(int stage, const DeviceRows& rows) {
  const CachedRows cached = cache_.rows(RowsOfDrafter(config_, model_->module_count())[stage].keys);
  const int width = V4ShapeOf(config_).head_dim;
  std::vector<float> keys;
  std::vector<bf16> key(width);
  for (int r = 0; r < rows.count(); ++r) {
    std::vector<uint8_t> bytes;
    if (rows.slots[r] >= 0) bytes = ReadCacheRow(device_, *stream_, cached, rows.slots[r], rows.positions[r]);
    if (bytes.empty()) {
      keys.insert(keys.end(), width, std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    CHECK_EQ(bytes.size(), width * sizeof(bf16));
    std::memcpy(key.data(), bytes.data(), bytes.size());
    for (const bf16 value : key) keys.push_back(ToFloat(value));
  }
  return keys;
}

std::vector<std::vector<float>> MtpDevice::TappedStreams(const DeviceRows& rows) {
  PutRows(rows);
  const std::vector<PrefillSpan> spans = SpansOf(rows);
  const Batch batch = BatchOf(rows, spans);
  const Forward f = v4_->ForwardOf(*stream_, batch);
  const Matrix<float> output = output_.first_rows(rows.count());
  const Matrix<float> embedded = f.activations.hidden.first_rows(rows.count());
  f.ops.embed(f.stream, {.out = embedded, .table = embed_, .ids = ids_, .vocab_size = config_.vocab_size});
  SeedStreams(f, embedded, output);
  std::vector<std::vector<float>> of_layer;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    V4Layer(f, layers_[layer], v4_->Context(cache_, static_cast<int>(layer)), output);
    of_layer.push_back(GetFloats(output));
  }
  std::vector<std::vector<float>> tapped;
  for (const int layer : config_.dspark->target_layer_ids) tapped.push_back(of_layer[layer]);
  return tapped;
}

std::vector<std::vector<int32_t>> MtpDevice::SelectedPositions(const DeviceRows& rows) {
  const IndexerActivations& a = v3_->indexer_activations();
  const bool shared = config_.index_share_for_mtp_iteration && !rows.list_rows.empty();
  const int32_t* const lists = shared ? a.recycled : a.selected;
  std::vector<std::vector<int32_t>> selected(rows.count(), std::vector<int32_t>(config_.index_topk));
  for (int r = 0; r < rows.count(); ++r) {
    device_.CopyToHost(*stream_, selected[r].data(), lists + int64_t{r} * config_.index_topk,
                       selected[r].size() * sizeof(int32_t));
  }
  stream_->Synchronize();
  return selected;
}

std::vector<float> MtpDevice::MarkovBias(const std::vector<int32_t>& ids) {
  const int rows = static_cast<int>(ids.size());
  Put(ids_, ids);
  model_->block_drafts()->MarkovBias(*stream_, ids_, logits_.first_rows(rows));
  return GetFloats(logits_.first_rows(rows));
}

std::vector<float> MtpDevice::Logits(int level, const std::vector<float>& outputs) {
  const int rows = static_cast<int>(outputs.size()) / width();
  CHECK_LE(rows, size_.rows);
  Put(output_.data, outputs);
  const DraftLevels& levels = level == 0 ? *model_ : drafter();
  levels.Logits(*stream_, level, output_.first_rows(rows), logits_.first_rows(rows), nullptr);
  return GetFloats(logits_.first_rows(rows));
}

}  // namespace foredraft
