#include "engine/checkpoint/weight_loader.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint_check.h"
#include "engine/checkpoint/formats/host_tensor.h"
#include "engine/checkpoint/formats/stored_format.h"

namespace foredraft {
namespace {

// Reads, packs and frees the tensors of one weight after another.
class CheckpointSource : public WeightSource {
 public:
  CheckpointSource(const Checkpoint& checkpoint, const ModelDescription& model, Device& device,
                   Stream& stream, const LoadProgress& progress)
      : WeightSource(device, stream, progress), checkpoint_(checkpoint), model_(model) {}

 private:
  absl::StatusOr<std::vector<float>> Values(const WeightSpec&, const TensorSpec& tensor) override {
    ASSIGN_OR_RETURN(const HostTensor host, ReadTensor(checkpoint_, model_, tensor));
    return ToFloats(host);
  }

  absl::StatusOr<std::vector<int32_t>> Ids(const TensorSpec& tensor) override {
    const auto [file, entry] = checkpoint_.Find(tensor.name);
    std::vector<int64_t> stored(tensor.element_count());
    RETURN_IF_ERROR(file->Read(*entry, 0, entry->bytes, stored.data()));
    const int64_t columns = tensor.shape[1];
    for (size_t i = 0; i < stored.size(); ++i) {
      if (stored[i] >= 0 && stored[i] < model_.expert_count) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor %s: element [%d, %d]: %d, allowed 0..%d", file->path(), entry->name,
                          static_cast<int64_t>(i) / columns, static_cast<int64_t>(i) % columns, stored[i],
                          model_.expert_count - 1));
    }
    return std::vector<int32_t>(stored.begin(), stored.end());
  }

  absl::Status Read(const WeightSpec& table, int64_t first, std::span<bf16> out) override {
    const auto [file, entry] = checkpoint_.Find(table.tensors[0]->name);
    if (entry->dtype == "BF16") {
      return file->Read(*entry, first * sizeof(bf16), out.size_bytes(), out.data());
    }
    std::vector<float> floats(out.size());
    RETURN_IF_ERROR(file->Read(*entry, first * sizeof(float), floats.size() * sizeof(float), floats.data()));
    std::transform(floats.begin(), floats.end(), out.begin(), [](float x) { return ToBf16(x); });
    return absl::OkStatus();
  }

  absl::Status Set(const WeightSpec& weight, const MatrixMember& member) override {
    ASSIGN_OR_RETURN(const std::vector<HostWeight> parts, ReadParts(weight));
    ASSIGN_OR_RETURN(*member.out, device_.PackWeight(parts));
    weight.Mark(*member.out);
    return absl::OkStatus();
  }

  absl::Status Set(const WeightSpec& weight, const ExpertsMember& member) override {
    std::optional<WeightFormat> first;
    const auto read = [&](int index) -> absl::StatusOr<std::vector<HostWeight>> {
      ASSIGN_OR_RETURN(std::vector<HostWeight> parts, ReadParts(weight, index));
      if (!first) first = parts.front().format;
      if (!(parts.front().format == *first))
        return RefuseExpert(*weight.parts(index)[0], parts.front().format, *first);
      return rounds_inputs() ? WithInputScale(weight, index, std::move(parts)) : std::move(parts);
    };
    ASSIGN_OR_RETURN(*member.out, device_.PackWeights(weight.expert_count, read));
    weight.Mark(member.out->first);
    return first ? CheckOtherRanks(weight, *first) : absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> InputScalesOf(const ExpertsMember& experts) override {
    return ReadInputScales(checkpoint_, model_, experts);
  }

  absl::Status Set(const WeightSpec& weight, const RowGroupsMember& member) override {
    ASSIGN_OR_RETURN(const HostTensor own, ReadBf16(weight));
    const int32_t rows = own.n / member.count;
    const auto* const values = reinterpret_cast<const bf16*>(own.data.get());
    const auto group = [&](int index) -> absl::StatusOr<std::vector<HostWeight>> {
      return std::vector<HostWeight>{{.n = rows, .k = own.k, .data = values + int64_t{index} * rows * own.k}};
    };
    ASSIGN_OR_RETURN(*member.out, device_.PackWeights(member.count, group));
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  absl::Status Set(const WeightSpec& weight, const KvBMember& member) override {
    ASSIGN_OR_RETURN(const HostTensor kv_b, ReadBf16(weight));
    const HostWeight whole = kv_b.View();
    const int nope = member.nope;
    const int value = member.value;
    std::vector<bf16> transposed;
    const auto w_uk = [&](int head) -> absl::StatusOr<std::vector<HostWeight>> {
      transposed = TransposeRows(kv_b, head * (nope + value), nope);
      return std::vector<HostWeight>{{.n = whole.k, .k = nope, .data = transposed.data()}};
    };
    const auto w_uv = [&](int head) -> absl::StatusOr<std::vector<HostWeight>> {
      const int64_t first_row = head * (nope + value) + nope;
      return std::vector<HostWeight>{
          {.n = value, .k = whole.k, .data = static_cast<const bf16*>(whole.data) + first_row * whole.k}};
    };
    ASSIGN_OR_RETURN(*member.whole, device_.PackWeight({&whole, 1}));
    weight.Mark(*member.whole);
    ASSIGN_OR_RETURN(*member.w_uk, device_.PackWeights(member.head_count, w_uk));
    ASSIGN_OR_RETURN(*member.w_uv, device_.PackWeights(member.head_count, w_uv));
    Advance(weight.tensors);
    return absl::OkStatus();
  }

  // Checks the experts that other ranks load. Either all experts are FP8 or none is, because ranks exchange
  // the experts' input rows in the one form that all experts read (ExpertExchange).
  absl::Status CheckOtherRanks(const WeightSpec& weight, const WeightFormat& own) const {
    for (int expert = 0; expert < model_.expert_count; ++expert) {
      bool all_f8 = true;
      for (const TensorSpec* const spec : weight.parts(0)) {
        all_f8 &= FindStored(checkpoint_, model_, OfExpert(*spec, expert)) == &kFp8Stored;
      }
      if (all_f8 == IsF8(own)) continue;
      const WeightFormat other = all_f8 ? kFp8Format : kBf16Format;
      return RefuseExpert(OfExpert(*weight.parts(0)[0], expert), other, own);
    }
    return absl::OkStatus();
  }

  // `spec` for another expert.
  static TensorSpec OfExpert(TensorSpec spec, int expert) {
    const std::string from = absl::StrFormat(".experts.%d.", spec.expert);
    const std::string to = absl::StrFormat(".experts.%d.", expert);
    for (std::string* const name : {&spec.name, &spec.scale}) {
      if (const size_t at = name->find(from); at != std::string::npos) name->replace(at, from.size(), to);
    }
    spec.expert = expert;
    return spec;
  }

  // Refuses an expert in another format than the first: the experts of a layer are one array.
  absl::Status RefuseExpert(const TensorSpec& spec, const WeightFormat& format,
                            const WeightFormat& first) const {
    const std::string name = FindStored(checkpoint_, model_, spec)->tensors(model_, spec).front().name;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tensor %s: %s, allowed %s, as the layer's other experts have",
                        checkpoint_.Find(name).file->path(), name, NameOf(format), NameOf(first)));
  }

  // Multiplies the input scale of the rank's expert `index` into its weights' tensor scales, for products of
  // rounded inputs.
  absl::StatusOr<std::vector<HostWeight>> WithInputScale(const WeightSpec& weight, int index,
                                                         std::vector<HostWeight> parts) const {
    const std::span<const TensorSpec* const> specs = weight.parts(index);
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].tensor_scale *= InputScale(specs[i]->expert);
      if (std::isnormal(parts[i].tensor_scale)) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %s: its scale times that of its inputs: %g, allowed normal numbers",
                          specs[i]->name, parts[i].tensor_scale));
    }
    return parts;
  }

  // Bytes in the file, scales included.
  int64_t BytesOf(const TensorSpec& tensor) const override {
    int64_t bytes = 0;
    const StoredFormat& stored = *FindStored(checkpoint_, model_, tensor);
    for (const StoredTensor& part : stored.tensors(model_, tensor)) {
      if (part.part != StoredTensor::Part::kConstant) bytes += checkpoint_.Find(part.name).entry->bytes;
    }
    return bytes;
  }

  // The rank's part of a weight that has one tensor, in BF16.
  absl::StatusOr<HostTensor> ReadBf16(const WeightSpec& weight) {
    ASSIGN_OR_RETURN(HostTensor whole, ReadTensor(checkpoint_, model_, *weight.tensors[0]));
    return SliceOf(ToBf16(std::move(whole)), weight.slice(0));
  }

  // Views of memory in parts_, valid until the next call. If only some parts are quantised (a checkpoint with
  // modules_to_not_convert or ignored modules), all become BF16.
  absl::StatusOr<std::vector<HostWeight>> ReadParts(const WeightSpec& weight, int index = 0) {
    const std::span<const TensorSpec* const> specs = weight.parts(index);
    parts_.clear();
    for (const TensorSpec* spec : specs) {
      ASSIGN_OR_RETURN(HostTensor tensor, ReadTensor(checkpoint_, model_, *spec));
      parts_.push_back(std::move(tensor));
    }
    const DType code = parts_.front().format.code;
    const bool keep =
        code != DType::kF32 && std::all_of(parts_.begin(), parts_.end(),
                                           [&](const HostTensor& part) { return part.format.code == code; });
    std::vector<HostWeight> views;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (!keep) parts_[i] = ToBf16(std::move(parts_[i]));
      absl::StatusOr<HostTensor> own = SliceOf(std::move(parts_[i]), weight.slice(static_cast<int>(i)));
      if (!own.ok()) {
        return absl::InvalidArgumentError(
            absl::StrFormat("tensor %s: %s", specs[i]->name, own.status().message()));
      }
      parts_[i] = *std::move(own);
      views.push_back(parts_[i].View());
      if (!weight.slices.empty()) views.back().whole_n = static_cast<int32_t>(specs[i]->shape.front());
    }
    Advance(specs);
    return views;
  }

  const Checkpoint& checkpoint_;
  const ModelDescription& model_;
  std::vector<HostTensor> parts_;  // of the weight that is being packed
};

}  // namespace

absl::StatusOr<LoadedWeights> LoadWeights(const Checkpoint& checkpoint, const ModelDescription& description,
                                          Device& device, Stream& stream, const LoadProgress& progress) {
  return CheckpointSource(checkpoint, description, device, stream, progress).Make(description);
}

}  // namespace foredraft
