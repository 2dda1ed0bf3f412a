#pragma once

// What gpu_ops prints: a line per op and number of rows, measured beside the prediction.

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/bench_json.h"
#include "tests/bench/device_timer.h"
#include "tests/bench/library_rates.h"
#include "tests/bench/op_cost.h"
#include "tests/bench/op_memory.h"
#include "tests/bench/paper_device.h"

namespace foredraft {

inline constexpr double kColdBytes = 256e6;  // five times an H200's L2

struct GpuOpsOptions {
  std::string backend = "cuda";
  std::string gpu;
  std::string only;
  std::string json;
  std::vector<int> rows = {1, 4, 8, 32, 128};
  bool small = false;
  bool markdown = false;
};

class Bench : public OpMemory {
 public:
  // `gpu`: the model that predictions come from; null prints none.
  Bench(const GpuOpsOptions& options, std::unique_ptr<Device> device, const GpuModel* gpu)
      : OpMemory(std::move(device)), options_(options), json_(options.json) {
    if (gpu != nullptr) {
      paper_ = std::make_unique<PaperDevice>(*gpu);
      paper_stream_ = paper_->CreateStream();
    }
    rates_ = options.backend == "paper" ? RatesOf(*gpu) : MeasureRates(OpMemory::device(), options_.small);
    const char* const origin = options.backend == "paper" ? "assumed" : "measured";
    std::cout << absl::StreamFormat("%s\ncopy %.0f GB/s, BF16 %.0f TFLOPS %s; FP8 taken for %.0f\n\n",
                                    OpMemory::device().name(), rates_.bytes_per_second / 1e9,
                                    rates_.bf16_flops / 1e12, origin, rates_.fp8_flops / 1e12);
    Head();
    json_.Add({{"program", "gpu_ops"},
               {"device", OpMemory::device().name()},
               {"predicted_for", gpu != nullptr ? gpu->name : ""},
               {"rates", origin},
               {"copy_gb_per_s", rates_.bytes_per_second / 1e9},
               {"bf16_tflops", rates_.bf16_flops / 1e12}});
  }

  // Those of the paper device while a prediction is made: `submit` calls the same ops with the same
  // parameters.
  const Ops& ops() { return predicting_ ? paper_->ops() : OpMemory::ops(); }
  Stream& stream() { return predicting_ ? *paper_stream_ : OpMemory::stream(); }

  bool Wants(const std::string& name) const { return name.find(options_.only) != std::string::npos; }
  const std::vector<int>& rows() const { return options_.rows; }
  int Width(int r1) const { return options_.small ? std::max(1, r1 / 16) : r1; }

  std::vector<PackedWeights> ColdWeights(int count, int n, int k, DType dtype) {
    return OpMemory::ColdWeights(count, n, k, dtype, options_.small ? 0 : kColdBytes);
  }

  // `library`: seconds of the vendor's library for the same op, if it has it.
  void Line(
      const std::string& name, int rows, const OpCost& cost, const std::function<void(int)>& submit,
      const CostContext& shape = {},
      const std::function<std::optional<double>()>& library = [] { return std::nullopt; }) {
    const std::optional<double> predicted = Predicted(shape, submit);
    PaperDevice::SetContext(shape);
    const double seconds = MedianSeconds(device(), OpMemory::stream(), submit);
    const double roofline = RooflineSeconds(cost, rates_);
    const bool memory_bound = cost.bytes / rates_.bytes_per_second >= roofline;
    const std::optional<double> library_seconds = options_.backend == "paper" ? std::nullopt : library();
    const std::string measured = options_.backend == "paper" ? "-" : Microseconds(seconds);
    std::cout << absl::StrFormat(LineFormat(), name, absl::StrCat(rows), measured,
                                 absl::StrFormat("%.0f", cost.bytes / seconds / 1e9),
                                 absl::StrFormat("%.1f", (cost.bf16_flops + cost.fp8_flops) / seconds / 1e12),
                                 absl::StrFormat("%.0f%%", 100 * roofline / seconds),
                                 memory_bound ? "memory" : "matrix", Microseconds(predicted),
                                 Microseconds(library_seconds))
              << std::flush;
    nlohmann::ordered_json line = {{"op", name}, {"rows", rows}};
    if (options_.backend != "paper") line["us"] = seconds * 1e6;
    line["roofline_us"] = roofline * 1e6;
    line["bytes"] = cost.bytes;
    line["flops"] = cost.bf16_flops + cost.fp8_flops;
    if (predicted.has_value()) line["predicted_us"] = *predicted * 1e6;
    if (library_seconds.has_value()) line["library_us"] = *library_seconds * 1e6;
    json_.Add(line);
  }

 private:
  using Format = absl::ParsedFormat<'s', 's', 's', 's', 's', 's', 's', 's', 's'>;
  const Format& LineFormat() const {
    static const Format text("%-42s %5s %10s %8s %8s %7s %-7s %12s %10s\n");
    static const Format markdown("| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n");
    return options_.markdown ? markdown : text;
  }
  void Head() const {
    std::cout << absl::StrFormat(LineFormat(), "op", "rows", "us", "GB/s", "TFLOPS", "share", "bound",
                                 "predicted us", "library us");
    if (options_.markdown) std::cout << "|---|---|---|---|---|---|---|---|---|\n";
  }

  static DeviceRates RatesOf(const GpuModel& gpu) {
    return {.bytes_per_second = gpu.memory_rate, .bf16_flops = gpu.bf16_flops, .fp8_flops = gpu.fp8_flops};
  }
  static std::string Microseconds(std::optional<double> seconds) {
    return seconds.has_value() ? absl::StrFormat("%.2f", *seconds * 1e6) : "-";
  }

  std::optional<double> Predicted(const CostContext& shape, const std::function<void(int)>& submit) {
    if (paper_ == nullptr) return std::nullopt;
    PaperDevice::SetContext(shape);
    predicting_ = true;
    const double seconds = MedianSeconds(*paper_, *paper_stream_, submit);
    predicting_ = false;
    return seconds;
  }

  const GpuOpsOptions options_;
  JsonLines json_;
  DeviceRates rates_;
  std::unique_ptr<PaperDevice> paper_;
  std::unique_ptr<Stream> paper_stream_;
  bool predicting_ = false;
};

// The ops of DeepSeek-V4's attention at V4-Flash's shapes, 16,384 positions.
void V4AttentionOps(Bench& bench);

}  // namespace foredraft
