#include "tests/cuda_on_host/global_order.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace cuda_on_host {
namespace {

constexpr uintptr_t kGranule = 16;

struct LastWrite {
  uint32_t block;
  int thread;
  uint32_t write;  // the thread's, from 1
};

// What the blocks of a grid share.
struct GridWrites {
  std::unordered_map<uintptr_t, LastWrite> writes;         // by granule
  std::unordered_map<const void*, KnownWrites> published;  // by the address of an atomic operation
};

GridWrites& Grid() {
  static GridWrites& grid = *new GridWrites;
  return grid;
}

template <class Visit>
void ForEachGranule(const void* address, size_t bytes, const Visit& visit) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(address);
  for (uintptr_t granule = first / kGranule; granule <= (first + bytes - 1) / kGranule; ++granule) {
    visit(granule);
  }
}

}  // namespace

void KnownWrites::Join(const KnownWrites& other) {
  for (const auto& [block, theirs] : other.counts_) {
    std::vector<uint32_t>& own = counts_[block];
    own.resize(std::max(own.size(), theirs.size()));
    for (size_t i = 0; i < theirs.size(); ++i) own[i] = std::max(own[i], theirs[i]);
  }
}

void KnownWrites::Set(uint32_t block, int thread, uint32_t writes) {
  std::vector<uint32_t>& own = counts_[block];
  own.resize(std::max(own.size(), static_cast<size_t>(thread) + 1));
  own[thread] = std::max(own[thread], writes);
}

bool KnownWrites::Has(uint32_t block, int thread, uint32_t write) const {
  const auto at = counts_.find(block);
  return at != counts_.end() && static_cast<size_t>(thread) < at->second.size() &&
         at->second[thread] >= write;
}

void BlockOrder::Begin(uint32_t block, int threads) {
  block_ = block;
  Thread first;
  first.known = std::make_shared<KnownWrites>();
  threads_.assign(threads, first);
}

void BlockOrder::Arrive(int thread, ArrivedWrites& barrier) const {
  const Thread& own = threads_[thread];
  if (own.known != barrier.last) {
    barrier.known.Join(*own.known);
    barrier.last = own.known;
  }
  barrier.known.Set(block_, thread, own.writes);
}

void BlockOrder::Release(const std::vector<int>& waiting, ArrivedWrites& barrier) {
  const auto known = std::make_shared<const KnownWrites>(std::move(barrier.known));
  for (const int thread : waiting) threads_[thread].known = known;
  barrier = {};
}

KnownWrites BlockOrder::KnownTo(int thread) const {
  KnownWrites known = *threads_[thread].known;
  known.Set(block_, thread, threads_[thread].writes);
  return known;
}

void BlockOrder::Write(int thread, const void* address, size_t bytes) {
  const LastWrite write = {block_, thread, ++threads_[thread].writes};
  ForEachGranule(address, bytes, [&](uintptr_t granule) { Grid().writes[granule] = write; });
}

void BlockOrder::Read(int thread, const void* address, size_t bytes, const SourceLocation& location) const {
  ForEachGranule(address, bytes, [&](uintptr_t granule) {
    const auto at = Grid().writes.find(granule);
    if (at == Grid().writes.end()) return;
    const LastWrite& write = at->second;
    if (write.block == block_ && write.thread == thread) return;
    if (threads_[thread].known->Has(write.block, write.thread, write.write)) return;
    KernelFault(location, "reads device memory that thread " + std::to_string(write.thread) + " of block " +
                              std::to_string(write.block) +
                              " of the same grid wrote, and nothing orders the read behind the write");
  });
}

void BlockOrder::Fence(int thread) {
  Thread& own = threads_[thread];
  KnownWrites known = KnownTo(thread);
  known.Join(own.acquired);
  own.acquired = {};
  own.released = known;
  own.known = std::make_shared<const KnownWrites>(std::move(known));
}

void BlockOrder::Atomic(int thread, const void* address) {
  Thread& own = threads_[thread];
  KnownWrites& published = Grid().published[address];
  own.acquired.Join(published);
  published.Join(own.released);
}

void ForgetGlobalWrites() {
  Grid().writes.clear();
  Grid().published.clear();
}

}  // namespace cuda_on_host
