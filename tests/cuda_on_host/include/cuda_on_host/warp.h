#pragma once

// Warp intrinsics: all lanes of the mask wait for each other, and the last one computes the results of all.

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda_on_host/device_thread.h"

namespace cuda_on_host {

template <class T>
struct ShuffleLane {
  T value;     // in
  int source;  // in: the lane read from
  T result;
};

template <class T>
void RunShuffle(uint32_t mask, LaneArguments lanes, const SourceLocation& location) {
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1u)) continue;
    auto* own = static_cast<ShuffleLane<T>*>(lanes[lane]);
    if (!(mask >> own->source & 1u)) {
      KernelFault(location, "shuffle: lane " + std::to_string(lane) + " reads lane " +
                                std::to_string(own->source) + ", which is not in the mask");
    }
    own->result = static_cast<const ShuffleLane<T>*>(lanes[own->source])->value;
  }
}

template <class T>
T Shuffle(uint32_t mask, T value, int source, const SourceLocation& location) {
  ShuffleLane<T> lane = {value, source, value};
  MeetLanes(mask, &RunShuffle<T>, &lane, location);
  return lane.result;
}

template <class T>
struct ReduceLane {
  T value;
  T result;
};

template <class T, class Join>
void RunReduce(uint32_t mask, LaneArguments lanes, const SourceLocation&) {
  T joined = {};
  bool first = true;
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1u)) continue;
    const T value = static_cast<ReduceLane<T>*>(lanes[lane])->value;
    joined = first ? value : Join{}(joined, value);
    first = false;
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1u) static_cast<ReduceLane<T>*>(lanes[lane])->result = joined;
  }
}

template <class T, class Join>
T Reduce(uint32_t mask, T value, Join, const SourceLocation& location) {
  ReduceLane<T> lane = {value, value};
  MeetLanes(mask, &RunReduce<T, Join>, &lane, location);
  return lane.result;
}

inline void RunBallot(uint32_t mask, LaneArguments lanes, const SourceLocation&) {
  uint32_t votes = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) && static_cast<ReduceLane<uint32_t>*>(lanes[lane])->value != 0) {
      votes |= 1u << lane;
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (mask >> lane & 1u) static_cast<ReduceLane<uint32_t>*>(lanes[lane])->result = votes;
  }
}

inline void RunNothing(uint32_t, LaneArguments, const SourceLocation&) {}

template <class T>
void RunMatch(uint32_t mask, LaneArguments lanes, const SourceLocation&) {
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1u)) continue;
    auto* own = static_cast<ShuffleLane<T>*>(lanes[lane]);
    own->source = 0;
    for (int other = 0; other < 32; ++other) {
      if ((mask >> other & 1u) && static_cast<ShuffleLane<T>*>(lanes[other])->value == own->value) {
        own->source = static_cast<int>(static_cast<uint32_t>(own->source) | 1u << other);
      }
    }
  }
}

}  // namespace cuda_on_host

// ---- shuffles ----

template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32, CUDA_ON_HOST_CALLER) {
  const int lane = cuda_on_host::ThreadInBlock() % 32;
  return cuda_on_host::Shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), {file, line});
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int lane_mask, int width = 32, CUDA_ON_HOST_CALLER) {
  const int lane = cuda_on_host::ThreadInBlock() % 32;
  const int source = lane ^ lane_mask;
  // Lanes of a lower segment can be read; for lanes of a higher segment the result is the own value.
  const int readable = source / width <= lane / width ? source : lane;
  return cuda_on_host::Shuffle(mask, value, readable, {file, line});
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32, CUDA_ON_HOST_CALLER) {
  const int lane = cuda_on_host::ThreadInBlock() % 32;
  const int source = lane % width >= static_cast<int>(delta) ? lane - static_cast<int>(delta) : lane;
  return cuda_on_host::Shuffle(mask, value, source, {file, line});
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32, CUDA_ON_HOST_CALLER) {
  const int lane = cuda_on_host::ThreadInBlock() % 32;
  const int source = lane % width + static_cast<int>(delta) < width ? lane + static_cast<int>(delta) : lane;
  return cuda_on_host::Shuffle(mask, value, source, {file, line});
}

// ---- votes, reductions ----

inline void __syncwarp(uint32_t mask = 0xffffffffu, CUDA_ON_HOST_CALLER) {
  cuda_on_host::MeetLanes(mask, &cuda_on_host::RunNothing, nullptr, {file, line});
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate, CUDA_ON_HOST_CALLER) {
  cuda_on_host::ReduceLane<uint32_t> lane = {predicate != 0, 0};
  cuda_on_host::MeetLanes(mask, &cuda_on_host::RunBallot, &lane, {file, line});
  return lane.result;
}
inline int __any_sync(uint32_t mask, int predicate, CUDA_ON_HOST_CALLER) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(uint32_t mask, int predicate, CUDA_ON_HOST_CALLER) {
  return __ballot_sync(mask, predicate, file, line) == mask;
}
template <class T>
uint32_t __match_any_sync(uint32_t mask, T value, CUDA_ON_HOST_CALLER) {
  cuda_on_host::ShuffleLane<T> lane = {value, 0, value};
  cuda_on_host::MeetLanes(mask, &cuda_on_host::RunMatch<T>, &lane, {file, line});
  return static_cast<uint32_t>(lane.source);
}

#define CUDA_ON_HOST_REDUCE(name, type, join)                                                            \
  inline type name(uint32_t mask, type value, CUDA_ON_HOST_CALLER) {                                     \
    return cuda_on_host::Reduce(mask, value, [](type a, type b) -> type { return join; }, {file, line}); \
  }
CUDA_ON_HOST_REDUCE(__reduce_add_sync, int,
                    static_cast<int>(static_cast<unsigned>(a) + static_cast<unsigned>(b)))
CUDA_ON_HOST_REDUCE(__reduce_add_sync, unsigned, a + b)
CUDA_ON_HOST_REDUCE(__reduce_min_sync, int, a < b ? a : b)
CUDA_ON_HOST_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
CUDA_ON_HOST_REDUCE(__reduce_max_sync, int, a < b ? b : a)
CUDA_ON_HOST_REDUCE(__reduce_max_sync, unsigned, a < b ? b : a)
CUDA_ON_HOST_REDUCE(__reduce_and_sync, unsigned, a& b)
CUDA_ON_HOST_REDUCE(__reduce_or_sync, unsigned, a | b)
CUDA_ON_HOST_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef CUDA_ON_HOST_REDUCE
