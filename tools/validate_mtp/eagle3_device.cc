#include "tools/validate_mtp/eagle3_device.h"

#include <algorithm>
#include <numeric>

#include "base/status_macros.h"
#include "engine/model/draft_head.h"
#include "engine/model/draft_target.h"
#include "engine/model/model_kind.h"

namespace foredraft {
namespace {

constexpr int kTokensPerBlock = 32;

}  // namespace

absl::StatusOr<std::unique_ptr<Eagle3Device>> Eagle3Device::Create(Device& device, const ModelConfig& config,
                                                                   const LoadedWeights& weights,
                                                                   const Size& size) {
  std::unique_ptr<Eagle3Device> created(new Eagle3Device(device, config, size));
  RETURN_IF_ERROR(created->Allocate(weights));
  RETURN_IF_ERROR(created->AllocateCache());
  return created;
}

absl::Status Eagle3Device::Allocate(const LoadedWeights& weights) {
  const ForwardCapacity capacity = {
      .rows = size_.rows, .decode_rows = size_.rows, .positions = size_.positions};
  ASSIGN_OR_RETURN(model_, config_.kind->create(device_, comm_, config_, weights, capacity));
  ASSIGN_OR_RETURN(head_, Eagle3Head::Create(device_, *model_, *weights.drafter()->Find<Eagle3Weights>(),
                                             capacity, DType::kBF16));
  model_->draft_target()->SetLayerReader(this);
  ActivationAllocator allocate(device_);
  allocate(ids_, size_.rows);
  allocate(slots_, size_.rows);
  allocate(positions_, size_.rows);
  allocate(previous_, size_.rows, config_.hidden_size);
  allocate(output_, size_.rows, config_.hidden_size);
  allocate(fused_, size_.rows, config_.hidden_size);
  allocate(logits_, size_.rows, config_.vocab_size);
  return allocate.status();
}

absl::Status Eagle3Device::AllocateCache() {
  KvCacheShape shape = {.groups = CacheGroupsOf(config_, /*module_count=*/0, kTokensPerBlock),
                        .block_counts = {},
                        .boundaries = {}};
  std::vector<CacheGroupTable> tables;
  for (const CacheGroup& group : shape.groups) {
    const int blocks = (size_.positions + group.tokens_per_block - 1) / group.tokens_per_block;
    std::vector<int32_t> in_order(static_cast<size_t>(blocks) * size_.slots);
    std::iota(in_order.begin(), in_order.end(), 1);
    ASSIGN_OR_RETURN(int32_t* const table, device_.AllocateArray<int32_t>(in_order.size()));
    device_.CopyToDevice(*stream_, table, in_order.data(), in_order.size() * sizeof(int32_t));
    tables.push_back({table, blocks});
    shape.block_counts.push_back(static_cast<int>(in_order.size()) + 1);
  }
  stream_->Synchronize();
  ASSIGN_OR_RETURN(cache_, KvCache::Create(device_, shape, tables, /*poison=*/true));
  return absl::OkStatus();
}

void Eagle3Device::Read(Stream& stream, int layer, Matrix<const float> hidden) const {
  head_->Read(stream, layer, hidden);
  const std::vector<int>& taps = config_.draft_head->taps;
  if (std::find(taps.begin(), taps.end(), layer) != taps.end()) taps_.push_back(Get(hidden));
}

Batch Eagle3Device::Upload(const DeviceRows& rows, std::vector<PrefillSpan>& spans) {
  const size_t count = rows.ids.size();
  device_.CopyToDevice(*stream_, ids_, rows.ids.data(), count * sizeof(int32_t));
  device_.CopyToDevice(*stream_, slots_, rows.slots.data(), count * sizeof(int32_t));
  device_.CopyToDevice(*stream_, positions_, rows.positions.data(), count * sizeof(int32_t));
  for (size_t row = 0; rows.prefill && row < count; ++row) {
    if (spans.empty() || spans.back().slot != rows.slots[row]) {
      spans.push_back({.slot = rows.slots[row],
                       .first_row = static_cast<int32_t>(row),
                       .row_count = 0,
                       .first_position = rows.positions[row]});
    }
    ++spans.back().row_count;
  }
  return {.index = {.slots = slots_, .positions = positions_, .rows = static_cast<int32_t>(count)},
          .ids = ids_,
          .previous = previous_.first_rows(static_cast<int>(count)),
          .spans = spans};
}

Eagle3Device::TargetRun Eagle3Device::RunTarget(const DeviceRows& rows) {
  std::vector<PrefillSpan> spans;
  const Batch batch = Upload(rows, spans);
  const Matrix<float> output = output_.first_rows(batch.index.rows);
  const Matrix<float> fused = fused_.first_rows(batch.index.rows);
  taps_.clear();
  model_->RunTarget(*stream_, batch, cache_, output);
  head_->Fuse(*stream_, batch.gemm_form(), fused);
  return {.outputs = Get(output), .taps = taps_, .fused = Get(fused)};
}

std::vector<float> Eagle3Device::RunHead(const DeviceRows& rows) {
  std::vector<PrefillSpan> spans;
  device_.CopyToDevice(*stream_, previous_.data, rows.previous.data(), rows.previous.size() * sizeof(float));
  const Batch batch = Upload(rows, spans);
  const Matrix<float> output = output_.first_rows(batch.index.rows);
  head_->RunModule(*stream_, /*module=*/0, batch, cache_, output);
  return Get(output);
}

std::vector<float> Eagle3Device::Logits(const DraftLevels& levels, int level,
                                        const std::vector<float>& outputs) {
  const int rows = static_cast<int>(outputs.size()) / config_.hidden_size;
  const Matrix<float> logits = logits_.first_rows(rows);
  device_.CopyToDevice(*stream_, previous_.data, outputs.data(), outputs.size() * sizeof(float));
  levels.Logits(*stream_, level, previous_.first_rows(rows), logits, nullptr);
  return Get(logits);
}

std::vector<float> Eagle3Device::TargetLogits(const std::vector<float>& outputs) {
  return Logits(*model_, 0, outputs);
}

std::vector<float> Eagle3Device::HeadLogits(const std::vector<float>& outputs) {
  return Logits(*head_, 1, outputs);
}

std::vector<float> Eagle3Device::Get(Matrix<const float> rows) const {
  std::vector<float> host(static_cast<size_t>(rows.rows) * rows.cols);
  device_.CopyToHost(*stream_, host.data(), rows.data, host.size() * sizeof(float));
  stream_->Synchronize();
  return host;
}

}  // namespace foredraft
