#include "engine/weights/dummy_weights.h"

#include <span>
#include <vector>

#include "base/status_macros.h"
#include "engine/weights/pack_quantized.h"
#include "engine/weights/quantization_config.h"
#include "kernels/random_weight.h"

namespace foredraft {
namespace {

int64_t RandomBytes(const TensorSpec& tensor, const ModelConfig& config,
                    const absl::flat_hash_set<const TensorSpec*>& packed) {
  if (packed.contains(&tensor)) {
    const bool int4 = config.pack_quantized.codes == CodeFormat::kInt4;
    return tensor.element_count() / 2 + tensor.element_count() / config.pack_quantized.group * (int4 ? 2 : 1);
  }
  if (!config.fp8_blocks || !tensor.is_quantised()) {
    return tensor.element_count() * static_cast<int64_t>(sizeof(bf16));
  }
  const std::vector<int64_t> scales = ScaleShape(config, tensor.shape);
  return tensor.element_count() + scales[0] * scales[1] * static_cast<int64_t>(sizeof(float));
}

class RandomSource : public WeightSource {
 public:
  // values: false leaves the tables' values out, which are made on the host.
  RandomSource(const ModelConfig& config, const ModelDescription& description, Device& device, Stream& stream,
               const LoadProgress& progress, bool values = true)
      : WeightSource(device, stream, progress),
        config_(config),
        values_(values),
        packed_(TensorsToPack(config, description)),
        last_seed_(config.tie_word_embeddings ? 1 : 2) {}

 private:
  absl::StatusOr<std::vector<float>> Values(const TensorSpec& tensor) override {
    return std::vector<float>(tensor.shape[0], tensor.kind == TensorKind::kNorm ? 1.0f : 0.0f);
  }

  absl::Status Read(const WeightSpec& table, int64_t first, std::span<bf16> out) override {
    if (!values_) return absl::OkStatus();
    const RandomWeight random = Random(table, DType::kBF16);
    for (bf16& element : out) element = RandomBf16(random, first++);
    return absl::OkStatus();
  }

  absl::Status Set(const WeightSpec& weight, const MatrixMember& member) override {
    ASSIGN_OR_RETURN(*member.out, One(Random(weight, StoredAs(weight))));
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  absl::Status Set(const WeightSpec& weight, const ExpertsMember& member) override {
    RandomWeight random = Random(weight, StoredAs(weight));
    random.offset = weight.tensors[0]->expert * random.item_stride;
    ASSIGN_OR_RETURN(*member.out, device_.MakeRandomWeights(weight.expert_count, random));
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  // The heads are views of kv_b's values.
  absl::Status Set(const WeightSpec& weight, const KvBMember& member) override {
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
    ASSIGN_OR_RETURN(member.out->kv_b, One(kv_b));
    ASSIGN_OR_RETURN(member.out->w_uk, device_.MakeRandomWeights(member.head_count, w_uk));
    ASSIGN_OR_RETURN(member.out->w_uv, device_.MakeRandomWeights(member.head_count, w_uv));
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  void Skip() override { ++last_seed_; }  // keeps the seeds of later weights equal on every rank

  int64_t BytesOf(const TensorSpec& tensor) const override { return RandomBytes(tensor, config_, packed_); }

  DType StoredAs(const WeightSpec& weight) const {
    if (IsPackedByChoice(config_, weight)) return PackedDType(config_);
    return config_.fp8_blocks && weight.is_quantised() ? DType::kF8E4M3 : DType::kBF16;
  }

  RandomWeight Random(const WeightSpec& weight, DType dtype) {
    const TensorSpec& tensor = *weight.tensors[0];
    RandomWeight random = DenseRandomWeight(weight.rows(), weight.columns(), dtype,
                                            RandomAmplitude(tensor, config_), SeedOf(tensor.kind));
    if (Is4Bit(dtype)) random.group = config_.pack_quantized.group;
    return random;
  }

  // Seed 1 is the embedding's (and a tied head's), seed 2 an untied head's. The other weights follow in
  // order.
  uint64_t SeedOf(TensorKind kind) {
    if (kind == TensorKind::kEmbedding) return 1;
    return kind == TensorKind::kHead ? 2 : ++last_seed_;
  }

  absl::StatusOr<PackedWeight> One(const RandomWeight& random) {
    ASSIGN_OR_RETURN(const PackedWeights array, device_.MakeRandomWeights(1, random));
    return array.first;
  }

  const ModelConfig& config_;
  const bool values_;
  const absl::flat_hash_set<const TensorSpec*> packed_;
  uint64_t last_seed_;
};

}  // namespace

absl::StatusOr<ModelWeights> MakeDummyWeights(const ModelConfig& config, int mtp_module_count, Device& device,
                                              Stream& stream, const LoadProgress& progress,
                                              const ExpertShard& shard) {
  const ModelDescription description = DescribeModel(config, mtp_module_count, shard);
  return RandomSource(config, description, device, stream, progress).Make(description);
}

absl::StatusOr<ModelWeights> AllocateDummyWeights(const ModelConfig& config, int mtp_module_count,
                                                  Device& device, const ExpertShard& shard) {
  const ModelDescription description = DescribeModel(config, mtp_module_count, shard);
  const std::unique_ptr<Stream> stream = device.CreateStream();
  return RandomSource(config, description, device, *stream, nullptr, /*values=*/false).Make(description);
}

int64_t DummyBytes(const ModelConfig& config, int mtp_module_count) {
  int64_t bytes = 0;
  const ModelDescription description = DescribeModel(config, mtp_module_count);
  const absl::flat_hash_set<const TensorSpec*> packed = TensorsToPack(config, description);
  for (const TensorSpec& tensor : description.tensors) {
    if (tensor.kind != TensorKind::kUnread) bytes += RandomBytes(tensor, config, packed);
  }
  return bytes;
}

}  // namespace foredraft
