#include "tools/quantize/quantize_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/formats/stored_format.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/model_kind.h"
#include "engine/model/quantization_config.h"
#include "engine/model_weights.h"
#include "kernels/cpu/device/thread_pool.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kConfigBytes = int64_t{16} << 20;
constexpr int64_t kBandElements = int64_t{1} << 22;
constexpr int kBandRows = 128;  // a multiple of every format's rows

// How to make the bytes of an output tensor.
struct Job {
  const TensorSpec* spec;  // null: the tensor is copied
  TensorLocation source;
};

class Quantizer {
 public:
  Quantizer(const QuantizeOptions& options, const ModelConfig& config, const Checkpoint& checkpoint,
            const LoadProgress& progress)
      : options_(options),
        checkpoint_(checkpoint),
        description_(DescribeModel(config, config.num_nextn_predict_layers)),
        choice_(description_),
        progress_(progress),
        pool_(options.threads, /*pin=*/false, /*pools=*/1) {}

  const ModelDescription& description() const { return description_; }

  absl::StatusOr<QuantizeReport> Write() {
    ListJobs();
    const auto write = [this](size_t index, std::ostream& out) {
      return WriteTensor(jobs_[index], outputs_[index], out);
    };
    ASSIGN_OR_RETURN(report_.written,
                     WriteCheckpoint(outputs_, options_.out_dir, options_.max_shard_bytes, write));
    report_.bytes_read = done_bytes_;
    return std::move(report_);
  }

 private:
  void ListJobs() {
    absl::flat_hash_map<const TensorEntry*, const TensorSpec*> specs;
    for (const WeightSpec& weight : description_.weights) {
      for (int index = 0; !weight.tensors.empty() && index < weight.expert_count; ++index) {
        for (const TensorSpec* part : weight.parts(index)) fused_[part] = weight.parts(index);
      }
    }
    for (const TensorSpec& spec : description_.tensors) specs[checkpoint_.Find(spec.name).entry] = &spec;
    for (const TensorLocation& tensor : checkpoint_.tensors()) {
      total_bytes_ += tensor.entry->bytes;
      const auto found = specs.find(tensor.entry);
      const TensorSpec* spec = found == specs.end() ? nullptr : found->second;
      if (spec == nullptr || !choice_.Quantises(*spec)) {
        const std::string& name = spec == nullptr ? tensor.entry->name : spec->name;
        outputs_.push_back({name, tensor.entry->dtype, tensor.entry->shape});
        jobs_.push_back({nullptr, tensor});
        continue;
      }
      for (StoredTensor& output : choice_.Of(*spec).tensors(description_, *spec)) {
        outputs_.push_back(std::move(output));
        jobs_.push_back({spec, tensor});
      }
    }
  }

  absl::Status WriteTensor(const Job& job, const StoredTensor& output, std::ostream& out) {
    if (job.spec == nullptr) return Copy(job.source, out);
    switch (output.part) {
      case StoredTensor::Part::kCodes:
        return WriteCodes(job, out);
      case StoredTensor::Part::kScales:
        out.write(scales_.data(), static_cast<std::streamsize>(scales_.size()));
        break;
      case StoredTensor::Part::kTensorScale:
        out.write(reinterpret_cast<const char*>(&tensor_scale_), sizeof(tensor_scale_));
        break;
      case StoredTensor::Part::kConstant:
        out << output.constant;
        break;
    }
    return absl::OkStatus();
  }

  absl::Status Copy(const TensorLocation& tensor, std::ostream& out) {
    std::vector<char> piece;
    for (int64_t done = 0; done < tensor.entry->bytes; done += static_cast<int64_t>(piece.size())) {
      piece.resize(std::min<int64_t>(tensor.entry->bytes - done, kBandElements));
      RETURN_IF_ERROR(
          tensor.file->Read(*tensor.entry, done, static_cast<int64_t>(piece.size()), piece.data()));
      out.write(piece.data(), static_cast<std::streamsize>(piece.size()));
      Advance(static_cast<int64_t>(piece.size()));
    }
    return absl::OkStatus();
  }

  // Reads rows [first, first + rows) as floats.
  absl::Status ReadRows(const TensorLocation& tensor, int64_t first, int64_t rows, int64_t k,
                        std::vector<float>& values) {
    values.resize(rows * k);
    const bool f32 = tensor.entry->dtype == "F32";
    const int64_t element = f32 ? 4 : 2;
    std::vector<bf16> halves(f32 ? 0 : values.size());
    void* const memory = f32 ? static_cast<void*>(values.data()) : halves.data();
    RETURN_IF_ERROR(tensor.file->Read(*tensor.entry, first * k * element, rows * k * element, memory));
    if (!f32) std::transform(halves.begin(), halves.end(), values.begin(), [](bf16 x) { return ToFloat(x); });
    return absl::OkStatus();
  }

  // The largest magnitude in a tensor and the tensors that are fused with it. All of them get one tensor
  // scale, which other programs require of gate and up. Reads each tensor once.
  absl::StatusOr<float> LargestOf(const TensorSpec& spec) {
    if (const auto found = largest_.find(&spec); found != largest_.end()) return found->second;
    const std::span<const TensorSpec* const> fused = fused_.at(&spec);
    float largest = 0;
    std::vector<float> values;
    for (const TensorSpec* part : fused) {
      const TensorLocation source = checkpoint_.Find(part->name);
      const int64_t n = part->shape[0], k = part->shape[1];
      const int64_t band = std::max<int64_t>(1, kBandElements / k);
      for (int64_t first = 0; first < n; first += band) {
        RETURN_IF_ERROR(ReadRows(source, first, std::min(band, n - first), k, values));
        for (const float value : values) largest = std::max(largest, std::fabs(value));
      }
    }
    for (const TensorSpec* part : fused) largest_[part] = largest;
    return largest;
  }

  // Reads and quantises a tensor, and keeps its scales.
  absl::Status WriteCodes(const Job& job, std::ostream& out) {
    const int64_t n = job.spec->shape[0], k = job.spec->shape[1];
    const int64_t band = std::max<int64_t>(1, kBandElements / k / kBandRows) * kBandRows;
    const WeightFormat& format = job.spec->format;
    const StoredFormat& stored = choice_.Of(*job.spec);
    if (stored.tensor_scale != nullptr) {
      ASSIGN_OR_RETURN(const float largest, LargestOf(*job.spec));
      tensor_scale_ = stored.tensor_scale(largest);
    }
    QuantizedTensor tensor{.name = job.spec->name};
    scales_.clear();
    std::vector<float> values;
    std::vector<uint8_t> codes;
    for (int64_t first = 0; first < n; first += band) {
      const int64_t rows = std::min(band, n - first);
      RETURN_IF_ERROR(ReadRows(job.source, first, rows, k, values));
      Advance(rows * k * (job.source.entry->dtype == "F32" ? 4 : 2));
      codes.resize(format.code_bytes(rows * k));
      tensor.error +=
          stored.round(format, {values.data(), rows, k, tensor_scale_}, pool_, codes.data(), scales_);
      out.write(reinterpret_cast<const char*>(codes.data()), static_cast<std::streamsize>(codes.size()));
    }
    report_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  void Advance(int64_t bytes) {
    done_bytes_ += bytes;
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  const QuantizeOptions& options_;
  const Checkpoint& checkpoint_;
  const ModelDescription description_;
  const FormatChoice choice_;
  const LoadProgress& progress_;
  ThreadPool pool_;
  std::vector<StoredTensor> outputs_;
  std::vector<Job> jobs_;   // of outputs_
  std::string scales_;      // the scales of the tensor whose codes were written last
  float tensor_scale_ = 1;  // of that tensor
  absl::flat_hash_map<const TensorSpec*, float> largest_;
  absl::flat_hash_map<const TensorSpec*, std::span<const TensorSpec* const>> fused_;
  int64_t total_bytes_ = 0;
  int64_t done_bytes_ = 0;
  QuantizeReport report_;
};

absl::Status WriteReport(const QuantizeReport& report, const std::string& path) {
  std::ofstream file(path);
  file << "tensor\telements\trms\trelative_error\tlargest_error\n";
  for (const QuantizedTensor& tensor : report.tensors) {
    const QuantizationError& error = tensor.error;
    file << absl::StrFormat("%s\t%d\t%.6g\t%.6f\t%.6g\n", tensor.name, error.count,
                            std::sqrt(error.squared_weight / static_cast<double>(error.count)),
                            error.relative(), error.largest_error);
  }
  file.close();
  if (file) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat("%s: cannot be written", path));
}

// Copies everything except config.json, weights and their index.
absl::Status CopyOtherFiles(const std::string& from, const std::string& to) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(from, error)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name == "config.json" || name.ends_with(".safetensors") ||
        name.ends_with(".safetensors.index.json")) {
      continue;
    }
    std::filesystem::copy_file(entry.path(), to + "/" + name, error);
    if (error)
      return absl::UnavailableError(absl::StrFormat("%s: %s", entry.path().string(), error.message()));
  }
  if (error) return absl::UnavailableError(absl::StrFormat("%s: %s", from, error.message()));
  return absl::OkStatus();
}

// Refuses sizes that cut a group. Groups lie along columns: an expert's gate and up have hidden_size columns,
// its down has moe_intermediate_size.
absl::Status CheckExpertColumns(const ModelConfig& config, int group, const std::string& config_path) {
  const auto divides = [&](int g) {
    return config.hidden_size % g == 0 && config.moe_intermediate_size % g == 0;
  };
  if (config.n_routed_experts == 0 || divides(group)) return absl::OkStatus();
  std::vector<int> allowed;
  std::copy_if(std::begin(kInt4Groups), std::end(kInt4Groups), std::back_inserter(allowed), divides);
  const bool hidden = config.hidden_size % group != 0;
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %s: %d, allowed multiples of the group, %d: no other program reads experts of which some "
      "projections are packed; %s",
      config_path, hidden ? "hidden_size" : "moe_intermediate_size",
      hidden ? config.hidden_size : config.moe_intermediate_size, group,
      allowed.empty() ? "no group fits, quantize to fp8"
                      : absl::StrCat("groups that fit: ", absl::StrJoin(allowed, ", "))));
}

}  // namespace

absl::StatusOr<QuantizeReport> QuantizeCheckpoint(const QuantizeOptions& options,
                                                  const LoadProgress& progress) {
  const std::string config_path = options.in_dir + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadFileText(config_path, kConfigBytes));
  ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, config_path));
  if (IsQuantised(config.projections)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: quantization_config: the checkpoint is quantised already, allowed BF16", config_path));
  }
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(options.in_dir, config));
  // Modules that config.json does not declare, or that are missing, are left out.
  ASSIGN_OR_RETURN(config.num_nextn_predict_layers, CheckCheckpoint(checkpoint, config));
  if (Is4Bit(options.format)) {
    RETURN_IF_ERROR(CheckExpertColumns(config, options.format.columns, config_path));
  }
  RETURN_IF_ERROR(MakeOutputDir(options.out_dir, "quantize"));

  config = WithProjections(std::move(config), options.format);
  Quantizer quantizer(options, config, checkpoint, progress);
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  SetQuantization(config, quantizer.description(), json);
  RETURN_IF_ERROR(CopyOtherFiles(options.in_dir, options.out_dir));
  ASSIGN_OR_RETURN(QuantizeReport report, quantizer.Write());
  if (config.num_nextn_predict_layers == 0) report.left_out = config.drafter;
  RETURN_IF_ERROR(WriteReport(report, options.out_dir + "/" + kQuantizationReportFile));
  // config.json is written last: without it a directory is not a checkpoint, so an interrupted run leaves
  // none.
  RETURN_IF_ERROR(WriteJsonFile(json, options.out_dir + "/config.json"));
  return report;
}

}  // namespace foredraft
