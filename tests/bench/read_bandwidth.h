#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace foredraft {

// How fast `threads` threads read memory that is in no cache: the upper bound for streaming weights. Use from
// one thread at a time.
class ReadBandwidth {
 public:
  // Writes the buffer once, on huge pages if the machine allows them (madvise), like weights.
  ReadBandwidth(int threads, size_t bytes);
  ~ReadBandwidth();
  ReadBandwidth(const ReadBandwidth&) = delete;
  ReadBandwidth& operator=(const ReadBandwidth&) = delete;

  // Bytes per second of the fastest of three reads of the buffer, so that a short disturbance does not count.
  // Each thread reads its own part, in the way that was fastest in the constructor.
  double Measure();

  // A way to read: how many streams of addresses each thread follows at once, and how far ahead it
  // prefetches.
  struct Way {
    int streams = 1;
    int prefetch_bytes = 0;
  };
  const Way& way() const { return way_; }

 private:
  double Fastest(const Way& way) const;
  double Read(const Way& way) const;

  const int threads_;
  const size_t bytes_;
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  const uint64_t* data_ = nullptr;
  Way way_;
};

}  // namespace foredraft
