#ifndef FOREDRAFT_KERNELS_DEVICE_H_
#define FOREDRAFT_KERNELS_DEVICE_H_

// A device: memory, packed weights, streams, graphs and the table of ops. One implementation per backend,
// chosen once in kernels/device_factory.cc.

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

namespace foredraft {

// An ordered queue of ops. Ops called on it run in order; what the host sees of their outputs is defined
// after Synchronize. Used by one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void Synchronize() = 0;

  // Opens a branch: ops on the stream that Fork returns come after all that was submitted here, and may run
  // beside what is submitted here until Join; what follows Join comes after both. One branch at a time. A
  // device that runs one op after another returns this stream.
  virtual Stream& Fork() { return *this; }
  virtual void Join() {}
};

// A recorded sequence of ops with their parameters: no closures, nothing of the host's state.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void Replay(Stream& stream) const = 0;
  virtual size_t node_count() const = 0;
  // True when both graphs hold the same kernels with the same parameter bytes in the same order.
  virtual bool SameNodes(const Graph& other) const = 0;
};

// A point in a stream's order, which the host can wait for and measure from. Used by one thread at a time,
// but for Wait and SecondsSince, which another thread may call once Record has returned.
class Event {
 public:
  virtual ~Event() = default;
  // The point after all that was submitted to `stream` so far; recording again moves it.
  virtual void Record(Stream& stream) = 0;
  // Waits until the stream has passed the point; false where it has not by the deadline.
  virtual bool Wait(std::chrono::steady_clock::time_point deadline) const = 0;
  // On the device's own clock. Both points are passed.
  virtual double SecondsSince(const Event& earlier) const = 0;
};

// A weight as the checkpoint has it, in host memory: [n, k] row-major.
struct HostWeight {
  DType dtype = DType::kBF16;  // kF32 is rounded to BF16 when packed
  int32_t n = 0;
  int32_t k = 0;
  const void* data = nullptr;
  const float* scale_inv = nullptr;  // kF8E4M3: [ceil(n / block_n), ceil(k / block_k)], a multiplier
  int32_t block_n = 128;
  int32_t block_k = 128;
};

struct DeviceOptions {
  int threads = 1;          // CPU: worker threads, the caller included
  bool pin = false;         // CPU: pin them to cores
  int ranks_here = 1;       // CPU: ranks on this machine, this one included, whose threads share the cores
  std::string isa;          // CPU: "", or "avx512_bf16", "avx2", "portable" to force a path (tests)
  std::string tuning_file;  // CUDA: what `foredraft tune` wrote, or ""
};

struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // "cpu avx512-bf16": goes into the numerics class.
  virtual std::string name() const = 0;
  virtual const Ops& ops() const = 0;

  // Zero-filled memory, 64-byte aligned, that lives as long as the device. RESOURCE_EXHAUSTED names the
  // bytes, what they were for, and where a backend has memory of its own, who holds the rest.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  // What the allocations that follow are for: "weights", "activations", "KV cache".
  virtual void BeginPurpose(const std::string& purpose) = 0;
  // Host memory, zero-filled, that lives as long as the device and that its copies reach without waiting
  // (page-locked where that matters).
  virtual absl::StatusOr<void*> AllocatePinned(size_t bytes) = 0;
  // Of the device: the host's where that is the device.
  virtual DeviceMemory memory() const = 0;
  // Where an op that runs for the first time may load code or make itself a workspace: all of them must run
  // once, on the largest shapes, before the first capture.
  virtual bool needs_first_runs() const = 0;
  // RESOURCE_EXHAUSTED once an op found no memory for its workspace: what has been computed since is worth
  // nothing, and nothing more will be.
  virtual absl::Status status() const { return absl::OkStatus(); }
  // Whether rms_norm and silu_mul write QuantizedRows and GEMMs with FP8 weights read them. Their bits are
  // those of a GEMM that gets BF16 rows.
  virtual bool quantizes_rows() const { return false; }
  // The warm-up is over: from now on Allocate and Capture are broken invariants.
  virtual void Freeze() = 0;

  // Packs `parts` (same k, same dtype class), stacked along n, into one weight. Memory lives as long as the
  // device.
  virtual absl::StatusOr<PackedWeight> PackWeight(std::span<const HostWeight> parts) = 0;

  // The parts of weight `index` of an array. The host memory stays valid until the next call.
  using WeightParts = std::function<absl::StatusOr<std::vector<HostWeight>>(int index)>;
  // `count` weights packed like PackWeight's, all of one shape and dtype; asked for one after another, so
  // that the host holds one at a time.
  virtual absl::StatusOr<PackedWeights> PackWeights(int count, const WeightParts& parts) = 0;

  // `count` weights of random elements; no host memory where the device can do without.
  virtual absl::StatusOr<PackedWeights> MakeRandomWeights(int count, const RandomWeight& weight) = 0;

  virtual std::unique_ptr<Stream> CreateStream() = 0;
  virtual std::unique_ptr<Event> CreateEvent() = 0;

  // Host memory may change when this returns.
  virtual void CopyToDevice(Stream& stream, void* device, const void* host, size_t bytes) = 0;
  // The same from memory of AllocatePinned, which is read when the stream gets there.
  virtual void CopyPinnedToDevice(Stream& stream, void* device, const void* host, size_t bytes) = 0;
  // Defined once the stream has passed it (Synchronize, or an Event). Waits, unless `host` is of
  // AllocatePinned.
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

// backend: "cpu" (or "cuda" where it was built). UNIMPLEMENTED names what this binary has.
absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const std::string& backend,
                                                     const DeviceOptions& options);

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_DEVICE_H_
