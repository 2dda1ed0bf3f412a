#include "tools/quantize/quantize_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
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
#include "engine/checkpoint/checkpoint_check.h"
#include "engine/checkpoint/checkpoint_names.h"
#include "engine/checkpoint/pack_quantized.h"
#include "kernels/cpu/device/thread_pool.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kConfigBytes = int64_t{16} << 20;
constexpr int64_t kBandElements = int64_t{1} << 22;
constexpr int kBlock = 128;  // of FP8

// What makes the bytes of an output tensor.
enum class Step {
  kCopy,    // the tensor as it is
  kCodes,   // reads and quantises it; keeps the scales
  kScales,  // the kept scales
  kShape,
};
struct Job {
  Step step;
  const TensorSpec* spec;  // null: a tensor that is not part of the model
  TensorLocation source;
};

class Quantizer {
 public:
  Quantizer(const QuantizeOptions& options, const ModelConfig& config, const Checkpoint& checkpoint,
            const LoadProgress& progress)
      : options_(options),
        config_(config),
        checkpoint_(checkpoint),
        description_(DescribeModel(config, config.num_nextn_predict_layers)),
        progress_(progress),
        pool_(options.threads, /*pin=*/false, /*ranks_here=*/1) {}

  const ModelDescription& description() const { return description_; }

  absl::StatusOr<QuantizeReport> Write() {
    ListJobs();
    const auto write = [this](size_t index, std::ostream& out) { return WriteTensor(jobs_[index], out); };
    ASSIGN_OR_RETURN(report_.written,
                     WriteCheckpoint(outputs_, options_.out_dir, options_.max_shard_bytes, write));
    report_.bytes_read = done_bytes_;
    return std::move(report_);
  }

 private:
  bool int4() const { return options_.dtype == DType::kInt4; }

  void ListJobs() {
    const absl::flat_hash_set<const TensorSpec*> packed = TensorsToPack(config_, description_);
    absl::flat_hash_map<const TensorEntry*, const TensorSpec*> specs;
    for (const TensorSpec& spec : description_.tensors) specs[checkpoint_.Find(spec.name).entry] = &spec;
    for (const TensorLocation& tensor : checkpoint_.tensors()) {
      total_bytes_ += tensor.entry->bytes;
      const auto found = specs.find(tensor.entry);
      const TensorSpec* spec = found == specs.end() ? nullptr : found->second;
      const bool quantise = spec != nullptr && (int4() ? packed.contains(spec) : spec->is_quantised());
      if (!quantise) {
        const std::string& name = spec == nullptr ? tensor.entry->name : spec->name;
        Add({name, tensor.entry->dtype, tensor.entry->shape}, {Step::kCopy, spec, tensor});
      } else if (int4()) {
        const int64_t n = spec->shape[0], k = spec->shape[1];
        const std::vector<std::string> names = PackedNames(config_, *spec);
        Add({names[0], "I32", {n, k / 8}}, {Step::kCodes, spec, tensor});
        Add({names[1], "BF16", {n, k / options_.group}}, {Step::kScales, spec, tensor});
        Add({names[2], "I64", {2}}, {Step::kShape, spec, tensor});
      } else {
        Add({spec->name, "F8_E4M3", spec->shape}, {Step::kCodes, spec, tensor});
        const char* const dtype = spec->scale_format == ScaleFormat::kE8m0 ? "F8_E8M0" : "F32";
        Add({spec->scale, dtype, ScaleShape(config_, spec->shape)}, {Step::kScales, spec, tensor});
      }
    }
  }

  void Add(OutputTensor output, Job job) {
    outputs_.push_back(std::move(output));
    jobs_.push_back(job);
  }

  absl::Status WriteTensor(const Job& job, std::ostream& out) {
    switch (job.step) {
      case Step::kCopy:
        return Copy(job.source, out);
      case Step::kCodes:
        return WriteCodes(job, out);
      case Step::kScales:
        out.write(scales_.data(), static_cast<std::streamsize>(scales_.size()));
        break;
      case Step::kShape:
        out.write(reinterpret_cast<const char*>(job.spec->shape.data()), 2 * sizeof(int64_t));
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
    Advance(rows * k * element);
    return absl::OkStatus();
  }

  absl::Status WriteCodes(const Job& job, std::ostream& out) {
    const int64_t n = job.spec->shape[0], k = job.spec->shape[1];
    const int64_t band = std::max<int64_t>(1, kBandElements / k / kBlock) * kBlock;
    QuantizedTensor tensor{.name = job.spec->name};
    scales_.clear();
    std::vector<float> values;
    std::vector<uint8_t> codes;
    for (int64_t first = 0; first < n; first += band) {
      const int64_t rows = std::min(band, n - first);
      RETURN_IF_ERROR(ReadRows(job.source, first, rows, k, values));
      codes.resize(int4() ? rows * k / 2 : rows * k);
      tensor.error +=
          int4() ? QuantizeInt4(values, rows, k, codes) : QuantizeF8(*job.spec, values, rows, codes);
      out.write(reinterpret_cast<const char*>(codes.data()), static_cast<std::streamsize>(codes.size()));
    }
    report_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  // Appends the band's scales to scales_.
  QuantizationError QuantizeInt4(const std::vector<float>& values, int64_t rows, int64_t k,
                                 std::vector<uint8_t>& codes) {
    const int group = options_.group;
    std::vector<bf16> scales(rows * k / group);
    const QuantizationError error = InParallel(rows, k * 64, [&](int64_t row) {
      QuantizationError sum;
      for (int64_t i = row * k / group; i < (row + 1) * k / group; ++i) {
        sum += QuantizeInt4Group(&values[i * group], group, &codes[i * group / 2], &scales[i]);
      }
      return sum;
    });
    Keep(scales.data(), scales.size() * sizeof(bf16));
    return error;
  }

  QuantizationError QuantizeF8(const TensorSpec& spec, const std::vector<float>& values, int64_t rows,
                               std::vector<uint8_t>& codes) {
    const bool e8m0 = spec.scale_format == ScaleFormat::kE8m0;
    const int64_t k = spec.shape[1];
    const int64_t block_rows = (rows + kBlock - 1) / kBlock;
    const int64_t block_columns = (k + kBlock - 1) / kBlock;
    std::vector<float> scales(block_rows * block_columns);
    const QuantizationError error =
        InParallel(block_rows * block_columns, kBlock * kBlock * 32, [&](int64_t block) {
          const int64_t row = block / block_columns * kBlock;
          const int64_t column = block % block_columns * kBlock;
          return QuantizeF8Block(&values[row * k + column], k,
                                 static_cast<int>(std::min<int64_t>(kBlock, rows - row)),
                                 static_cast<int>(std::min<int64_t>(kBlock, k - column)),
                                 &codes[row * k + column], k, &scales[block], e8m0);
        });
    if (!e8m0) {
      Keep(scales.data(), scales.size() * sizeof(float));
      return error;
    }
    for (const float scale : scales) scales_.push_back(static_cast<char>(127 + std::ilogb(scale)));
    return error;
  }

  // The sum of body(i) over i in [0, count), in order.
  template <class Body>
  QuantizationError InParallel(int64_t count, int64_t cost, const Body& body) {
    std::vector<QuantizationError> errors(count);
    pool_.ParallelFor(count, cost, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) errors[i] = body(i);
    });
    QuantizationError sum;
    for (const QuantizationError& error : errors) sum += error;
    return sum;
  }

  void Keep(const void* scales, size_t bytes) { scales_.append(static_cast<const char*>(scales), bytes); }

  void Advance(int64_t bytes) {
    done_bytes_ += bytes;
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  const QuantizeOptions& options_;
  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  const ModelDescription description_;
  const LoadProgress& progress_;
  ThreadPool pool_;
  std::vector<OutputTensor> outputs_;
  std::vector<Job> jobs_;  // of outputs_
  std::string scales_;     // of the tensor whose codes were written last
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

// Everything but config.json, weights and their index.
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

// Groups run along the columns: hidden_size of an expert's gate and up, moe_intermediate_size of its down.
absl::Status CheckExpertColumns(const ModelConfig& config, int group, const std::string& config_path) {
  const auto divides = [&](int g) {
    return config.hidden_size % g == 0 && config.moe_intermediate_size % g == 0;
  };
  if (config.n_routed_experts == 0 || divides(group)) return absl::OkStatus();
  std::vector<int> allowed;
  std::copy_if(std::begin(kPackGroups), std::end(kPackGroups), std::back_inserter(allowed), divides);
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
  if (config.fp8_blocks || config.pack_quantized) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: quantization_config: the checkpoint is quantised already, allowed BF16", config_path));
  }
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(options.in_dir, config));
  // Modules that config.json does not declare, or that are not there, are no part of what is quantised.
  ASSIGN_OR_RETURN(config.num_nextn_predict_layers, CheckCheckpoint(checkpoint, config));
  if (options.dtype == DType::kInt4) {
    RETURN_IF_ERROR(CheckExpertColumns(config, options.group, config_path));
  }
  RETURN_IF_ERROR(MakeOutputDir(options.out_dir, "quantize"));

  config = WithProjections(std::move(config), options.dtype, options.group);
  Quantizer quantizer(options, config, checkpoint, progress);
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  SetQuantization(config, quantizer.description(), json);
  RETURN_IF_ERROR(CopyOtherFiles(options.in_dir, options.out_dir));
  ASSIGN_OR_RETURN(QuantizeReport report, quantizer.Write());
  RETURN_IF_ERROR(WriteReport(report, options.out_dir + "/" + kQuantizationReportFile));
  // Last: a directory without config.json is not a checkpoint, so a run that was cut short leaves none.
  RETURN_IF_ERROR(WriteJsonFile(json, options.out_dir + "/config.json"));
  return report;
}

}  // namespace foredraft
