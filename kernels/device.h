#pragma once

// A device: memory, packed weights, streams, graphs and the table of ops. One implementation per backend,
// chosen once in kernels/devices/device_factory.cc.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "kernels/random_weight.h"
#include "kernels/tensor.h"
#include "kernels/weight_format.h"

namespace foredraft {

// An ordered queue of ops. Ops called on it run in order; the host may read their outputs after Synchronize.
// Used by one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void Synchronize() = 0;

  // Opens a branch: ops on the returned stream run after all ops submitted here before, and may overlap ops
  // submitted here until Join. Ops after Join wait for both. Only one branch is open at a time. A device that
  // runs one op after another returns this stream.
  virtual Stream& Fork() { return *this; }
  virtual void Join() {}
};

// A recorded sequence of ops with their parameters. It holds no closures and no host state.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void Replay(Stream& stream) const = 0;
  virtual size_t node_count() const = 0;
  // True when both graphs hold the same kernels with the same parameter bytes in the same order.
  virtual bool SameNodes(const Graph& other) const = 0;
};

// A point in a stream's order that the host can wait for and measure time from. Used by one thread at a time,
// except that another thread may call Wait and SecondsSince once Record has returned.
class Event {
 public:
  virtual ~Event() = default;
  // Sets the point after all work submitted to `stream` so far; recording again moves it.
  virtual void Record(Stream& stream) = 0;
  // Waits until the stream has passed the point; false if it has not by the deadline.
  virtual bool Wait(std::chrono::steady_clock::time_point deadline) const = 0;
  // Measured by the device's clock; the stream must have passed both points.
  virtual double SecondsSince(const Event& earlier) const = 0;
};

// A weight in host memory, in a checkpoint's order: [n, k] row-major. A value is its code times its scale.
struct HostWeight {
  // 8-bit kinds have an FP32 scale per block, of any size. 4-bit kinds have a BF16 scale (NVFP4: E4M3, never
  // negative) per group of adjacent inputs; the group's size divides k and is a multiple of 8 up to
  // kMaxGroup. F32 weights are rounded to BF16 when packed.
  WeightFormat format;
  int32_t n = 0;
  int32_t k = 0;
  const void* data = nullptr;    // 4-bit kinds: [n, k / 2] bytes, the first code of a pair in the low nibble
  const void* scales = nullptr;  // [format.scale_rows(n), format.scale_columns(k)] of format.scale
  float tensor_scale = 1;        // where the format has one: another factor of every element
  int32_t whole_n = 0;           // outputs of the tensor that this is a part of; 0: n

  const float* f32_scales() const { return static_cast<const float*>(scales); }
  // The scale of the block or group that has this index in `scales`.
  float scale_at(int64_t index) const {
    if (format.scale == DType::kF32) return f32_scales()[index];
    if (format.scale == DType::kBF16) return ToFloat(static_cast<const bf16*>(scales)[index]);
    return F8E4M3ToFloat(static_cast<const uint8_t*>(scales)[index]);
  }
};
inline constexpr int32_t kMaxGroup = 128;

struct DeviceOptions {
  int threads = 1;       // CPU: worker threads, the caller included
  bool pin = false;      // CPU: pin the threads to cores
  int ranks_here = 1;    // CPU: ranks on this machine, this one included; their threads share the cores
  bool numa = false;     // CPU: threads read the memory of their own NUMA node; only if ranks_here is 1
  std::string topology;  // CPU: a made-up machine, in hwloc's synthetic form; for tests
  std::string isa;       // CPU: "" or "auto" for the widest, or "amx", "avx512", "avx2", "portable"
  // CPU: products with 4-bit weights round their input rows to 8 bits (kernels/cpu/gemm/int8_rows.h). This
  // changes results, but to the same bits for every isa.
  bool int8_inputs = false;
  std::string tuning_file;   // CUDA: path of the file that `foredraft tune` wrote, or ""
  bool side_stream = false;  // CUDA: Stream::Fork opens a branch; else it returns the stream itself
  bool pdl = true;           // CUDA: programmatic dependent launches, where the device has them
};

struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // The device's name, for example "cpu avx512-bf16"; part of the numerics class.
  virtual std::string name() const = 0;
  // A globally unique id of the hardware, as nvidia-smi writes it: "GPU-8f3c... at 0000:1B:00.0". Empty on
  // the CPU, which processes may share.
  virtual std::string hardware_id() const { return ""; }
  virtual const Ops& ops() const = 0;

  // Zero-filled memory, 64-byte aligned, that lives as long as the device. RESOURCE_EXHAUSTED names the
  // bytes, their purpose, and on a backend with its own memory, what holds the rest.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  // The purpose of the allocations that follow: "weights", "activations", "KV cache".
  virtual void BeginPurpose(const std::string& purpose) = 0;
  // Zero-filled host memory that lives as long as the device; page-locked on a GPU, so that copies are
  // asynchronous.
  virtual absl::StatusOr<void*> AllocatePinned(size_t bytes) = 0;
  // The device's memory; on the CPU, the host's.
  virtual DeviceMemory memory() const = 0;
  // True if an op may load code or allocate a workspace when it first runs: then every op must run once, on
  // the largest shapes, before the first capture.
  virtual bool needs_first_runs() const = 0;
  // RESOURCE_EXHAUSTED once an op finds no memory for its workspace: later results are invalid, and no
  // further op runs.
  virtual absl::Status status() const { return absl::OkStatus(); }
  // True if rms_norm and silu_mul write QuantizedRows, and GEMMs with FP8 weights read them. A GEMM gives the
  // same bits for quantised rows and for BF16 rows.
  virtual bool quantizes_rows() const { return false; }
  // Ends the warm-up: after it, Allocate and Capture fail a CHECK; on a GPU also AllocatePinned.
  virtual void Freeze() = 0;

  // Packs `parts` (same k, same kind; BF16 and F32 are one kind), stacked along n, into one weight. Its
  // memory lives as long as the device.
  virtual absl::StatusOr<PackedWeight> PackWeight(std::span<const HostWeight> parts) = 0;

  // Returns the parts of weight `index` of an array; their host memory stays valid until the next call.
  using WeightParts = std::function<absl::StatusOr<std::vector<HostWeight>>(int index)>;
  // Packs `count` weights, all of one shape and format, each as PackWeight does. `parts` is called once per
  // weight, in order, so that the host holds one at a time.
  virtual absl::StatusOr<PackedWeights> PackWeights(int count, const WeightParts& parts) = 0;

  // Generates `count` weights of random elements on the device.
  virtual absl::StatusOr<PackedWeights> MakeRandomWeights(int count, const RandomWeight& weight) = 0;

  // Called once by the thread that from then on submits the ops. Where ops run on pinned threads of the host,
  // and this thread is one of them, it is pinned to its core.
  virtual void PinSubmitter() {}

  virtual std::unique_ptr<Stream> CreateStream() = 0;
  virtual std::unique_ptr<Event> CreateEvent() = 0;

  // The caller may change the host memory when this returns.
  virtual void CopyToDevice(Stream& stream, void* device, const void* host, size_t bytes) = 0;
  // `host` comes from AllocatePinned; it is read when the stream reaches the copy.
  virtual void CopyPinnedToDevice(Stream& stream, void* device, const void* host, size_t bytes) = 0;
  // `host` is valid once the stream has passed the copy (Synchronize, or an Event). Blocks unless `host`
  // comes from AllocatePinned.
  virtual void CopyToHost(Stream& stream, void* host, const void* device, size_t bytes) = 0;

  // Records the ops `record` submits to `stream`, without running them.
  virtual std::unique_ptr<Graph> Capture(Stream& stream, const std::function<void()>& record) = 0;

  template <class T>
  absl::StatusOr<T*> AllocatePinnedArray(size_t count) {
    auto memory = AllocatePinned(count * sizeof(T));
    if (!memory.ok()) return memory.status();
    return static_cast<T*>(*memory);
  }
  template <class T>
  absl::StatusOr<T*> AllocateArray(size_t count) {
    auto memory = Allocate(count * sizeof(T));
    if (!memory.ok()) return memory.status();
    return static_cast<T*>(*memory);
  }
};

// backend: "cpu", or "cuda" if built in. UNIMPLEMENTED names the backends of this binary.
absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const std::string& backend,
                                                     const DeviceOptions& options);

}  // namespace foredraft
