#pragma once

// What ops_bench's two reports share: its options, a device with arrays and weights on it, and the lines of
// the ops that both report. ops_cpu.cc measures backend cpu at a model's shapes, ops_gpu.cc a GPU, here or on
// paper, at DeepSeek-R1's and V4-Flash's.

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/device.h"
#include "kernels/dtype.h"
#include "tests/bench/op_cost.h"
#include "tests/weight_formats.h"

namespace foredraft {

inline constexpr double kColdBytes = 256e6;  // more than the caches of a CPU, five times an H200's L2

struct OpsOptions {
  std::string backend = "cpu";
  std::string only;
  std::vector<int> rows;  // empty: the report's own
  bool markdown = false;
  // Options of backend cpu.
  std::string model = "deploy/configs/yardstick.json";
  std::vector<std::string> dtypes = {"bf16"};
  int context = 512;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  int buffer_mb = 512;
  std::string command;  // as given
  // Options of a GPU.
  std::string gpu;
  std::string json;
  bool small = false;
};

struct GemmSize {
  int rows, n, k;
};

// "BF16"; NVFP4 has the codes of FP4.
inline std::string KindOf(const WeightFormat& format) {
  return format == kNvfp4Format ? "NVFP4" : DTypeName(format.code);
}

// One line of a report: an op at a shape.
struct OpLine {
  std::string name;
  std::string shape = {};                       // of the operands, in words
  std::string dtype = DTypeName(DType::kBF16);  // of weights or keys
  int rows = 0;
  OpCost cost = {};
  CostContext context = {};
  std::optional<GemmSize> library = {};  // what the vendor's library also multiplies, if it has the op
};

// A report, and a device, a stream, and arrays and weights on it. Nothing is freed before the device.
class OpsBench {
 public:
  OpsBench(const OpsOptions& options, std::unique_ptr<Device> device)
      : options_(options), device_(std::move(device)), stream_(device_->CreateStream()) {}
  virtual ~OpsBench() = default;

  // Measures submit(i), i = 0, 1, ..., which submits the op to stream(), and prints the line.
  virtual void Line(const OpLine& line, const std::function<void(int)>& submit) = 0;
  virtual const Ops& ops() { return device_->ops(); }
  virtual Stream& stream() { return *stream_; }
  // Memory of a KV cache, which reads find outside the device's caches.
  virtual uint8_t* KvMemory(size_t bytes) { return Zeros<uint8_t>(bytes); }

  const OpsOptions& options() const { return options_; }
  const std::vector<int>& rows() const { return options_.rows; }
  bool Wants(const std::string& name) const { return name.find(options_.only) != std::string::npos; }

  Device& device() { return *device_; }

  template <class T>
  T* Zeros(size_t count) {
    auto memory = device_->AllocateArray<T>(count);
    CHECK(memory.ok()) << memory.status().ToString();
    return *memory;
  }
  // Random values in [-2, 2): some instructions take longer for zeros, and some devices less power.
  template <class T>
  Matrix<T> Rows(int rows, int cols) {
    using Value = std::remove_const_t<T>;
    return Dense(Random<Value>(size_t(rows) * cols,
                               [](uint32_t bits) {
                                 const float x = static_cast<float>(bits >> 8) * 0x1p-22f - 2;
                                 if constexpr (std::is_same_v<Value, bf16>)
                                   return ToBf16(x);
                                 else
                                   return static_cast<Value>(x);
                               }),
                 rows, cols);
  }
  // Absent if the device's ops do not take such rows.
  QuantizedRows F8Rows(int rows, int cols) {
    if (!device_->quantizes_rows()) return {};
    const int64_t pitch = (cols + 15) / 16 * 16, scale_pitch = (rows + 3) / 4 * 4;
    const int64_t groups = (cols + kQuantGroup - 1) / kQuantGroup;
    uint8_t* const codes = Random<uint8_t>(rows * pitch, [](uint32_t bits) {
      return static_cast<uint8_t>((bits >> 24 & 0x80) | (bits >> 16 & 0x7f) % 0x7f);  // 0x7f: NaN
    });
    float* const scales =
        Random<float>(groups * scale_pitch, [](uint32_t bits) { return (1 + (bits >> 24)) * 0x1p-18f; });
    return {codes, scales, rows, cols, pitch, scale_pitch};
  }
  // `count` of value(random bits), which repeat.
  template <class T, class Value>
  T* Random(size_t count, const Value& value) {
    std::vector<T> pattern(std::min<size_t>(count, 1 << 18));
    uint32_t bits = 1;
    for (T& element : pattern) element = value(bits = bits * 1664525 + 1013904223);
    T* const memory = Zeros<T>(count);
    for (size_t first = 0; first < count; first += pattern.size()) {
      const size_t part = std::min(pattern.size(), count - first);
      device_->CopyToDevice(*stream_, memory + first, pattern.data(), part * sizeof(T));
    }
    return memory;
  }
  template <class T>
  T* Put(const std::vector<T>& values) {
    T* const memory = Zeros<T>(values.size());
    device_->CopyToDevice(*stream_, memory, values.data(), values.size() * sizeof(T));
    return memory;
  }
  PackedWeights Random(int count, int n, int k, const WeightFormat& format) {
    auto weights = device_->MakeRandomWeights(count, DenseRandomWeight(n, k, format, 0.02f, 7));
    CHECK(weights.ok()) << weights.status().ToString();
    return *weights;
  }
  // `cold_bytes` of copies, so that none is still in a cache when it is read again. At least one.
  std::vector<PackedWeights> ColdWeights(int count, int n, int k, const WeightFormat& format,
                                         double cold_bytes, int max_copies = 64) {
    const double bytes = double(count) * n * k * (Is4Bit(format) ? 0.5 : DTypeBytes(format.code));
    const int copies = std::clamp(static_cast<int>(cold_bytes / bytes), 1, max_copies);
    std::vector<PackedWeights> weights;
    for (int i = 0; i < copies; ++i) weights.push_back(Random(count, n, k, format));
    return weights;
  }

 protected:
  const OpsOptions options_;

 private:
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Stream> stream_;
};

// `weights` of each format: copies that calls take in turns. Rows outside, dtypes inside: times that are
// compared are taken one after another.
void GemmLines(OpsBench& bench, const std::string& name,
               const std::vector<std::vector<PackedWeights>>& weights);

// A product per attention head.
struct HeadGemmShape {
  const char* name;
  int n, k;
};
void HeadGemmLines(OpsBench& bench, const HeadGemmShape& shape, int heads,
                   const std::vector<PackedWeights>& weights);

// Decode attention. Adjacent rows of a sequence attend the same keys, as the K + 1 rows of a step. The keys
// of one layer may fit into a cache, so each call takes the next layer.
struct DecodeShape {
  std::string name;
  int heads, latent, rope, nope;
  int layers, tokens_per_block, context;
  KvFormat format = {};
  int list_len = 0;  // > 0: rows attend a list of so many positions
};
void MlaDecodeLine(OpsBench& bench, const DecodeShape& shape, int rows, int rows_per_sequence);

// Each returns an exit status.
int RunCpuOps(OpsOptions options);
int RunGpuOps(OpsOptions options);

// The ops of DeepSeek-V4's attention at V4-Flash's shapes, 16,384 positions. `width`: of R1's or V4's width,
// how much is measured.
void V4AttentionOps(OpsBench& bench, const std::function<int(int)>& width);

}  // namespace foredraft
