#include "engine/checkpoint/dummy_weights.h"

#include <span>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/checkpoint/formats/stored_format.h"
#include "kernels/random_weight.h"

namespace foredraft {
namespace {

// The bytes that a checkpoint of this format takes for the tensor.
int64_t RandomBytes(const TensorSpec& tensor, const ModelDescription& model, const FormatChoice& choice) {
  if (tensor.kind == TensorKind::kIds) return tensor.element_count() * static_cast<int64_t>(sizeof(int64_t));
  return StoredBytes(choice.Of(tensor).tensors(model, tensor));
}

class RandomSource : public WeightSource {
 public:
  // values: false skips making the values that are made on the host (tables and FP32 matrices).
  RandomSource(const ModelDescription& model, Device& device, Stream& stream, const LoadProgress& progress,
               bool values = true)
      : WeightSource(device, stream, progress),
        model_(model),
        values_(values),
        choice_(model),
        last_seed_(model.ties_head ? 1 : 2) {}

 private:
  // The elements of a vector are all the same.
  absl::StatusOr<std::vector<float>> Values(const WeightSpec& weight, const TensorSpec& tensor) override {
    std::vector<float> values(tensor.element_count(), tensor.kind == TensorKind::kNorm ? 1.0f : 0.0f);
    if (tensor.shape.size() < 2 || !values_) return values;
    const RandomWeight random = Random(weight, kBf16Format);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = ToFloat(RandomBf16(random, static_cast<int64_t>(i)));
    }
    return values;
  }

  absl::StatusOr<std::vector<int32_t>> Ids(const TensorSpec& tensor) override {
    const uint64_t seed = SeedOf(tensor.kind);
    return values_ ? RandomIds(tensor, model_, seed) : std::vector<int32_t>(tensor.element_count());
  }

  absl::Status Read(const WeightSpec& table, int64_t first, std::span<bf16> out) override {
    if (!values_) return absl::OkStatus();
    const RandomWeight random = Random(table, kBf16Format);
    for (bf16& element : out) element = RandomBf16(random, first++);
    return absl::OkStatus();
  }

  absl::Status Set(const WeightSpec& weight, const MatrixMember& member) override {
    ASSIGN_OR_RETURN(*member.out, One(Own(Random(weight, StoredAs(weight)), weight)));
    weight.Mark(*member.out);
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  absl::Status Set(const WeightSpec& weight, const ExpertsMember& member) override {
    RandomWeight random = Own(Random(weight, StoredAs(weight)), weight);
    random.offset += weight.tensors[0]->expert * random.item_stride;
    random.input_scale = InputScale(weight.tensors[0]->expert);
    ASSIGN_OR_RETURN(*member.out, device_.MakeRandomWeights(weight.expert_count, random));
    weight.Mark(member.out->first);
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> InputScalesOf(const ExpertsMember& experts) override {
    const WeightSpec all = {.member = experts, .tensors = experts.of_layer};
    if (!(StoredAs(all) == kNvfp4Format)) return std::vector<float>();
    return std::vector<float>(model_.expert_count, kRandomInputScale);
  }

  absl::Status Set(const WeightSpec& weight, const RowGroupsMember& member) override {
    RandomWeight random = Own(Random(weight, kBf16Format), weight);
    random.n /= member.count;
    random.item_stride = int64_t{random.n} * random.k;
    ASSIGN_OR_RETURN(*member.out, device_.MakeRandomWeights(member.count, random));
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  // The per-head matrices take their values from kv_b.
  absl::Status Set(const WeightSpec& weight, const KvBMember& member) override {
    const RandomWeight kv_b = Own(Random(weight, kBf16Format), weight);
    const int latent = kv_b.k;
    RandomWeight w_uk = kv_b;
    w_uk.n = latent;
    w_uk.k = member.nope;
    w_uk.item_stride = int64_t{member.nope + member.value} * latent;
    w_uk.row_stride = 1;
    w_uk.column_stride = latent;
    RandomWeight w_uv = kv_b;
    w_uv.n = member.value;
    w_uv.offset += int64_t{member.nope} * latent;
    w_uv.item_stride = w_uk.item_stride;
    ASSIGN_OR_RETURN(*member.whole, One(kv_b));
    weight.Mark(*member.whole);
    ASSIGN_OR_RETURN(*member.w_uk, device_.MakeRandomWeights(member.head_count, w_uk));
    ASSIGN_OR_RETURN(*member.w_uv, device_.MakeRandomWeights(member.head_count, w_uv));
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  void Skip() override { ++last_seed_; }  // keeps the seeds of later weights equal on every rank

  int64_t BytesOf(const TensorSpec& tensor) const override { return RandomBytes(tensor, model_, choice_); }

  WeightFormat StoredAs(const WeightSpec& weight) const {
    return choice_.Quantises(weight) ? weight.tensors[0]->format : kBf16Format;
  }

  RandomWeight Random(const WeightSpec& weight, const WeightFormat& format) {
    const TensorSpec& tensor = *weight.tensors[0];
    return DenseRandomWeight(weight.rows(), weight.columns(), format, RandomAmplitude(tensor, model_),
                             SeedOf(tensor.kind));
  }

  // The rank's part of the matrix `whole`: one range of rows per stacked tensor, at most two tensors.
  static RandomWeight Own(const RandomWeight& whole, const WeightSpec& weight) {
    if (weight.slices.empty()) return whole;
    CHECK_LE(weight.slices.size(), 2u) << weight.name;
    RandomWeight own = whole;
    const TensorSlice& first = weight.slices.front();
    own.n = first.rows.count;
    own.k = first.columns.count;
    own.offset = int64_t{first.rows.first} * whole.row_stride + first.columns.first;
    if (weight.slices.size() == 2) {
      const IndexRange& rows = weight.slices.back().rows;
      const int64_t first_row = weight.parts().front()->shape.front() + rows.first;  // in the stacked matrix
      own.jump_row = own.n;
      own.jump = (first_row - first.rows.end()) * whole.row_stride;
      own.n += rows.count;
    }
    return own;
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

  const ModelDescription& model_;
  const bool values_;
  const FormatChoice choice_;
  uint64_t last_seed_;
};

}  // namespace

absl::StatusOr<LoadedWeights> MakeDummyWeights(const ModelDescription& description, Device& device,
                                               Stream& stream, const LoadProgress& progress) {
  return RandomSource(description, device, stream, progress).Make(description);
}

absl::StatusOr<LoadedWeights> AllocateDummyWeights(const ModelDescription& description, Device& device) {
  const std::unique_ptr<Stream> stream = device.CreateStream();
  return RandomSource(description, device, *stream, nullptr, /*values=*/false).Make(description);
}

int64_t DummyBytes(const ModelDescription& description) {
  int64_t bytes = 0;
  const FormatChoice choice(description);
  for (const TensorSpec& tensor : description.tensors) {
    if (tensor.kind != TensorKind::kUnread) bytes += RandomBytes(tensor, description, choice);
  }
  return bytes;
}

}  // namespace foredraft
