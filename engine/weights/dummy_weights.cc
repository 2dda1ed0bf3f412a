#include "engine/weights/dummy_weights.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "kernels/random_weight.h"

namespace foredraft {
namespace {

int64_t RandomBytes(const TensorSpec& tensor, const ModelConfig& config) {
  if (!config.fp8_blocks || !tensor.is_quantised()) {
    return tensor.element_count() * static_cast<int64_t>(sizeof(bf16));
  }
  const std::vector<int64_t> scales = ScaleShape(config, tensor.shape);
  return tensor.element_count() + scales[0] * scales[1] * static_cast<int64_t>(sizeof(float));
}

class RandomSource : public WeightSource {
 public:
  RandomSource(const ModelConfig& config, const Target& target)
      : WeightSource(target), config_(config), last_seed_(config.tie_word_embeddings ? 1 : 2) {}

 private:
  absl::Status Set(const VectorMember& member, const WeightSpec& weight) override {
    std::vector<float> values(member.leading_zeros, 0.0f);
    for (const TensorSpec* tensor : weight.tensors) {
      values.insert(values.end(), tensor->shape[0], tensor->kind == TensorKind::kNorm ? 1.0f : 0.0f);
    }
    ASSIGN_OR_RETURN(*member.out, Upload(values));
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  absl::Status Set(const TableMember& member, const WeightSpec& weight) override {
    constexpr int64_t kPieceElements = int64_t{1} << 22;
    const RandomWeight random = Random(weight, DType::kBF16);
    const int64_t count = weight.tensors[0]->element_count();
    ASSIGN_OR_RETURN(bf16* const table, target_.device.AllocateArray<bf16>(count));
    std::vector<bf16> piece(std::min(count, kPieceElements));
    for (int64_t first = 0; first < count; first += kPieceElements) {
      const int64_t length = std::min(kPieceElements, count - first);
      for (int64_t i = 0; i < length; ++i) piece[i] = RandomBf16(random, first + i);
      target_.device.CopyToDevice(target_.stream, table + first, piece.data(), length * sizeof(bf16));
    }
    *member.out = table;
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  absl::Status Set(const MatrixMember& member, const WeightSpec& weight) override {
    ASSIGN_OR_RETURN(*member.out, One(Random(weight, StoredAs(weight))));
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  absl::Status Set(const ExpertsMember& member, const WeightSpec& weight) override {
    RandomWeight random = Random(weight, StoredAs(weight));
    random.offset = first_expert(weight) * random.item_stride;
    ASSIGN_OR_RETURN(*member.out, target_.device.MakeRandomWeights(expert_count(weight), random));
    Advance(TensorsHere(weight));
    return absl::OkStatus();
  }

  // The heads are views of the numbers of kv_b.
  absl::Status Set(const KvBMember& member, const WeightSpec& weight) override {
    MlaWeights& mla = *member.out;
    const RandomWeight kv_b = Random(weight, DType::kBF16);
    const int latent = kv_b.k;
    RandomWeight w_uk = kv_b;
    w_uk.n = latent;
    w_uk.k = member.nope;
    w_uk.item_stride = int64_t{member.nope + member.value} * latent;
    w_uk.row_stride = 1;
    w_uk.column_stride = latent;
    RandomWeight w_uv = kv_b;
    w_uv.n = member.value;
    w_uv.offset = int64_t{member.nope} * latent;
    w_uv.item_stride = w_uk.item_stride;
    ASSIGN_OR_RETURN(mla.kv_b, One(kv_b));
    ASSIGN_OR_RETURN(mla.w_uk, target_.device.MakeRandomWeights(member.head_count, w_uk));
    ASSIGN_OR_RETURN(mla.w_uv, target_.device.MakeRandomWeights(member.head_count, w_uv));
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  int64_t BytesOf(const TensorSpec& tensor) const override { return RandomBytes(tensor, config_); }

  DType StoredAs(const WeightSpec& weight) const {
    return config_.fp8_blocks && weight.is_quantised() ? DType::kF8E4M3 : DType::kBF16;
  }

  RandomWeight Random(const WeightSpec& weight, DType dtype) {
    const TensorSpec& tensor = *weight.tensors[0];
    return DenseRandomWeight(weight.rows(), weight.columns(), dtype, RandomAmplitude(tensor, config_),
                             SeedOf(tensor.kind));
  }

  // The embedding, also as a tied head, has seed 1 and an untied head seed 2. The others follow in their
  // order.
  uint64_t SeedOf(TensorKind kind) {
    if (kind == TensorKind::kEmbedding) return 1;
    return kind == TensorKind::kHead ? 2 : ++last_seed_;
  }

  absl::StatusOr<PackedWeight> One(const RandomWeight& random) {
    ASSIGN_OR_RETURN(const PackedWeights array, target_.device.MakeRandomWeights(1, random));
    return array.first;
  }

  const ModelConfig& config_;
  uint64_t last_seed_;
};

}  // namespace

absl::StatusOr<ModelWeights> MakeDummyWeights(const ModelConfig& config, int mtp_module_count, Device& device,
                                              Stream& stream, const LoadProgress& progress,
                                              const ExpertShard& shard) {
  RandomSource source(config, {device, stream, progress, shard});
  return source.Make(DescribeModel(config, mtp_module_count));
}

int64_t DummyBytes(const ModelConfig& config, int mtp_module_count) {
  int64_t bytes = 0;
  const ModelDescription description = DescribeModel(config, mtp_module_count);
  for (const TensorSpec& tensor : description.tensors) {
    if (tensor.kind != TensorKind::kUnread) bytes += RandomBytes(tensor, config);
  }
  return bytes;
}

}  // namespace foredraft
