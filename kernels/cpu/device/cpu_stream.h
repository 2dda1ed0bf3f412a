#pragma once

// The CPU's stream and graph. Eager: an op runs when it is called. Capturing: it becomes a node of
// {function pointer, parameter bytes}, so a graph cannot hold host state.
//
// Owner: the caller of CreateStream or Capture. Thread: one at a time.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/device/thread_pool.h"
#include "kernels/device.h"

namespace foredraft {

// The resources of a kernel; lives as long as the device.
struct CpuContext {
  ThreadPool& pool;
  const IsaKernels& isa;
  bool int8_inputs = false;  // DeviceOptions::int8_inputs
};

template <class Params>
using CpuKernel = void (*)(const CpuContext& context, const Params& params);

// A kernel whose parameters are bytes; the address is the kernel's identity in SameNodes.
using CpuNodeFn = void (*)(const CpuContext& context, const std::byte* params);

class CpuGraph : public Graph {
 public:
  void Replay(Stream& stream) const override;
  size_t node_count() const override { return nodes_.size(); }
  bool SameNodes(const Graph& other) const override;

  void Append(CpuNodeFn fn, const void* params, size_t bytes);

 private:
  struct Node {
    CpuNodeFn fn;
    size_t offset;  // of its parameters in params_
    size_t bytes;
  };
  std::vector<Node> nodes_;
  std::vector<std::byte> params_;  // the parameters of all nodes, one after another
};

class CpuStream : public Stream {
 public:
  explicit CpuStream(const CpuContext& context) : context_(context) {}

  void Synchronize() override { CHECK(!capturing()) << "synchronize inside a capture"; }

  const CpuContext& context() const { return context_; }
  bool capturing() const { return graph_ != nullptr; }
  void BeginCapture();
  std::unique_ptr<CpuGraph> EndCapture();
  void Append(CpuNodeFn fn, const void* params, size_t bytes) { graph_->Append(fn, params, bytes); }

 private:
  const CpuContext context_;
  std::unique_ptr<CpuGraph> graph_;  // while capturing
};

// Ops have run when they return, so an event is complete when recorded.
class CpuEvent : public Event {
 public:
  void Record(Stream&) override { time_ = std::chrono::steady_clock::now(); }
  bool Wait(std::chrono::steady_clock::time_point) const override { return true; }
  double SecondsSince(const Event& earlier) const override {
    return std::chrono::duration<double>(time_ - static_cast<const CpuEvent&>(earlier).time_).count();
  }

 private:
  std::chrono::steady_clock::time_point time_;
};

template <class Params, CpuKernel<Params> kernel>
void RunNode(const CpuContext& context, const std::byte* bytes) {
  Params params;
  std::memcpy(&params, bytes, sizeof(Params));
  kernel(context, params);
}

// An entry of the op table: runs the kernel, or records it when the stream captures.
template <class Params, CpuKernel<Params> kernel>
void Submit(Stream& stream, const Params& params) {
  static_assert(std::is_trivially_copyable_v<Params>, "a graph node stores the parameters as bytes");
  auto& cpu_stream = static_cast<CpuStream&>(stream);
  if (!cpu_stream.capturing()) {
    kernel(cpu_stream.context(), params);
    return;
  }
  Params copy = params;
#if defined(__GNUC__) && !defined(__clang__)
  // SameNodes compares bytes. Clang lacks this builtin, so SameNodes may return false for equal nodes there.
  __builtin_clear_padding(&copy);
#endif
  cpu_stream.Append(&RunNode<Params, kernel>, &copy, sizeof(Params));
}

}  // namespace foredraft
