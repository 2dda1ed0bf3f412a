#include "tests/cuda_on_host/async_proxy.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace cuda_on_host {

void AsyncProxy::Begin(const std::byte* shared, size_t bytes) {
  shared_ = shared;
  known_.assign(shared, shared + bytes);
  writers_.assign((bytes + kGranule - 1) / kGranule, kNone);
}

void AsyncProxy::Attribute(int warp) {
  for (size_t block = 0; block < known_.size(); block += kBlock) {
    const size_t end = std::min(block + kBlock, known_.size());
    if (std::memcmp(shared_ + block, known_.data() + block, end - block) == 0) continue;
    for (size_t first = block; first < end; first += kGranule) {
      const size_t bytes = std::min(kGranule, end - first);
      if (std::memcmp(shared_ + first, known_.data() + first, bytes) != 0) {
        writers_[first / kGranule] = static_cast<int8_t>(warp);
      }
    }
    std::memcpy(known_.data() + block, shared_ + block, end - block);
  }
}

void AsyncProxy::Fence(int warp) {
  std::replace(writers_.begin(), writers_.end(), static_cast<int8_t>(warp), kNone);
  std::replace(writers_.begin(), writers_.end(), kOtherBlock, kNone);
}

void AsyncProxy::Access(const void* first, size_t bytes, const SourceLocation& location,
                        const char* what) const {
  const size_t begin = IndexOf(first);
  for (size_t granule = begin / kGranule; granule <= (begin + bytes - 1) / kGranule; ++granule) {
    if (writers_.at(granule) == kNone) continue;
    const std::string writer = writers_[granule] == kOtherBlock ? "another block's thread"
                                                                : "warp " + std::to_string(writers_[granule]);
    KernelFault(location, std::string(what) + " byte " + std::to_string(begin) + " of shared memory, which " +
                              writer + " wrote without a fence.proxy.async since");
  }
}

void AsyncProxy::Written(const void* first, size_t bytes) {
  const size_t begin = IndexOf(first);
  std::memcpy(known_.data() + begin, first, bytes);
}

void AsyncProxy::Stored(const void* first, size_t bytes) {
  Written(first, bytes);
  const size_t begin = IndexOf(first) / kGranule, end = (IndexOf(first) + bytes - 1) / kGranule;
  std::fill(writers_.begin() + begin, writers_.begin() + end + 1, kOtherBlock);
}

}  // namespace cuda_on_host
