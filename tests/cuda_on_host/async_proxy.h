#pragma once

// Which bytes of a block's shared memory the async proxy (TMA, wgmma) may touch. Threads write shared memory
// through the generic proxy; the async proxy sees that only behind a fence.proxy.async (PTX ISA, "Proxies").
// Kernels store by plain C++, so writes are found by comparing with a copy: what has changed while a thread
// ran, it wrote.
//
// The writer that is known is a warp: lanes of a warp that run in turn are not told apart. Stricter than the
// PTX ISA, which lets any thread fence that the writes happened before: here the writer has to, as in
// CUTLASS. A write of the value that was there is not seen.
//
// Owner and thread: a BlockRunner's.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda_on_host/device_thread.h"

namespace cuda_on_host {

class AsyncProxy {
 public:
  // A block begins; nothing in `shared` waits for a fence.
  void Begin(const std::byte* shared, size_t bytes);
  // Lanes of `warp`, and no others, have run since the last call.
  void Attribute(int warp);
  // A fence.proxy.async of a lane of `warp`, behind Attribute(warp).
  void Fence(int warp);
  // The async proxy reads or overwrites these bytes: a kernel fault if a warp wrote one of them without a
  // fence.
  void Access(const void* first, size_t bytes, const SourceLocation& location, const char* what) const;
  // The async proxy has written these bytes.
  void Written(const void* first, size_t bytes);
  // A thread of another block has written them: any warp's fence will do.
  void Stored(const void* first, size_t bytes);

 private:
  static constexpr size_t kGranule = 16;
  static constexpr size_t kBlock = 4096;  // compared as a whole first
  static constexpr int8_t kNone = -1;
  static constexpr int8_t kOtherBlock = 127;

  size_t IndexOf(const void* first) const { return static_cast<const std::byte*>(first) - shared_; }

  const std::byte* shared_ = nullptr;
  std::vector<std::byte> known_;
  std::vector<int8_t> writers_;  // of each granule: the warp that wrote it and has not fenced since
};

}  // namespace cuda_on_host
