#include "engine/weights/weight_loader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/weights/checkpoint_check.h"

namespace foredraft {
namespace {

// The embedding goes to the device in pieces of this size: it is the largest tensor, and needs no packing.
constexpr int64_t kTablePieceBytes = int64_t{64} << 20;

}  // namespace

absl::StatusOr<ModelWeights> LoadWeights(const std::string& checkpoint_dir, const ModelConfig& config,
                                         int mtp_module_count, Device& device, Stream& stream,
                                         const LoadProgress& progress, const ExpertShard& shard) {
  const int module_count = config.num_nextn_predict_layers;
  if (mtp_module_count < 0 || mtp_module_count > module_count)
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: MTP modules: %d, allowed 0..%d: the checkpoint has no more", checkpoint_dir,
                        mtp_module_count, module_count));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(checkpoint_dir));
  RETURN_IF_ERROR(CheckTensors(checkpoint, config, DescribeModel(config, module_count)));
  CheckpointSource source(checkpoint, config, {device, stream, progress, shard});
  return source.Make(DescribeModel(config, mtp_module_count));
}

absl::Status CheckpointSource::Set(const VectorMember& member, const WeightSpec& weight) {
  std::vector<float> values(member.leading_zeros, 0.0f);
  for (const TensorSpec* tensor : weight.tensors) {
    ASSIGN_OR_RETURN(const HostTensor host, ReadTensor(checkpoint_, config_, *tensor));
    const std::vector<float> part = ToFloats(host);
    values.insert(values.end(), part.begin(), part.end());
  }
  ASSIGN_OR_RETURN(*member.out, Upload(values));
  Advance(weight.tensors);
  return absl::OkStatus();
}

absl::Status CheckpointSource::Set(const TableMember& member, const WeightSpec& weight) {
  const auto [file, entry] = checkpoint_.Find(weight.tensors[0]->name);
  const bool f32 = entry->dtype == "F32";
  const int64_t element_bytes = f32 ? sizeof(float) : sizeof(bf16);
  const int64_t count = entry->bytes / element_bytes;
  ASSIGN_OR_RETURN(bf16* const table, target_.device.AllocateArray<bf16>(static_cast<size_t>(count)));
  const int64_t piece_count = std::min(count, kTablePieceBytes / element_bytes);
  std::vector<float> floats(f32 ? piece_count : 0);
  std::vector<bf16> piece(piece_count);
  for (int64_t first = 0; first < count; first += piece_count) {
    const int64_t length = std::min(piece_count, count - first);
    void* out = f32 ? static_cast<void*>(floats.data()) : piece.data();
    RETURN_IF_ERROR(file->Read(*entry, first * element_bytes, length * element_bytes, out));
    for (int64_t i = 0; f32 && i < length; ++i) piece[i] = ToBf16(floats[i]);
    target_.device.CopyToDevice(target_.stream, table + first, piece.data(),
                                static_cast<size_t>(length) * sizeof(bf16));
    Advance(length * element_bytes);
  }
  *member.out = table;
  return absl::OkStatus();
}

absl::Status CheckpointSource::Set(const MatrixMember& member, const WeightSpec& weight) {
  ASSIGN_OR_RETURN(const std::vector<HostWeight> parts, Read(weight.tensors));
  ASSIGN_OR_RETURN(*member.out, target_.device.PackWeight(parts));
  return absl::OkStatus();
}

absl::Status CheckpointSource::Set(const ExpertsMember& member, const WeightSpec& weight) {
  const auto read = [&](int index) { return Read(weight.parts(first_expert(weight) + index)); };
  ASSIGN_OR_RETURN(*member.out, target_.device.PackWeights(expert_count(weight), read));
  return absl::OkStatus();
}

absl::Status CheckpointSource::Set(const KvBMember& member, const WeightSpec& weight) {
  MlaWeights& mla = *member.out;
  const int nope = member.nope;
  const int value = member.value;
  ASSIGN_OR_RETURN(HostTensor kv_b, ReadTensor(checkpoint_, config_, *weight.tensors[0]));
  kv_b = ToBf16(std::move(kv_b));
  const HostWeight whole = kv_b.View();
  ASSIGN_OR_RETURN(mla.kv_b, target_.device.PackWeight({&whole, 1}));
  std::vector<bf16> part;
  const auto w_uk = [&](int head) -> absl::StatusOr<std::vector<HostWeight>> {
    part = TransposeRows(kv_b, head * (nope + value), nope);
    return std::vector<HostWeight>{{.dtype = DType::kBF16, .n = kv_b.k, .k = nope, .data = part.data()}};
  };
  const auto w_uv = [&](int head) -> absl::StatusOr<std::vector<HostWeight>> {
    part = CopyRows(kv_b, head * (nope + value) + nope, value);
    return std::vector<HostWeight>{{.dtype = DType::kBF16, .n = value, .k = kv_b.k, .data = part.data()}};
  };
  ASSIGN_OR_RETURN(mla.w_uk, target_.device.PackWeights(member.head_count, w_uk));
  ASSIGN_OR_RETURN(mla.w_uv, target_.device.PackWeights(member.head_count, w_uv));
  Advance(weight.tensors);
  return absl::OkStatus();
}

// If only some parts are FP8 (a checkpoint with modules_to_not_convert), all become BF16.
absl::StatusOr<std::vector<HostWeight>> CheckpointSource::Read(std::span<const TensorSpec* const> parts) {
  parts_.clear();
  for (const TensorSpec* part : parts) {
    ASSIGN_OR_RETURN(HostTensor tensor, ReadTensor(checkpoint_, config_, *part));
    parts_.push_back(std::move(tensor));
  }
  const bool f8 = std::all_of(parts_.begin(), parts_.end(),
                              [](const HostTensor& part) { return part.dtype == DType::kF8E4M3; });
  std::vector<HostWeight> views;
  for (HostTensor& part : parts_) {
    if (!f8) part = ToBf16(std::move(part));
    views.push_back(part.View());
  }
  Advance(parts);
  return views;
}

// In the file, scales included.
int64_t CheckpointSource::BytesOf(const TensorSpec& tensor) const {
  const TensorLocation scale = checkpoint_.Find(tensor.scale);
  return checkpoint_.Find(tensor.name).entry->bytes + (scale.entry == nullptr ? 0 : scale.entry->bytes);
}

}  // namespace foredraft
