#pragma once

// The emulation of kernels/cuda/common/ptx.h: the same functions in software. Asynchronous work is performed
// at the wait for it, so a missing wait shows.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"

namespace foredraft::cuda {

template <class T>
T& SharedStorage(CUDA_ON_HOST_CALLER) {
  if (sizeof(T) > cuda_on_host::SharedBytes()) {
    cuda_on_host::KernelFault({file, line}, "shared memory: the struct has " + std::to_string(sizeof(T)) +
                                                " bytes, the launch " +
                                                std::to_string(cuda_on_host::SharedBytes()));
  }
  return *reinterpret_cast<T*>(cuda_on_host::SharedMemory());
}

inline void GridDependencyWait() { cuda_on_host::WaitForPredecessor(); }
inline void GridDependencyLaunch() {}
inline void GridDependencySync() { GridDependencyWait(); }

inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

template <class T>
void StorePeer(T* to, const T& value) {
  cuda_on_host::WritePeer(to, &value, sizeof(T));
}
inline void FenceSystem(CUDA_ON_HOST_CALLER) { cuda_on_host::FencePeers({file, line}); }
inline void StorePeerFlag(uint64_t* flag, uint64_t value) { *flag = value; }
inline void WaitForPeerFlag(const uint64_t* flag, uint64_t value, const uint32_t* over, CUDA_ON_HOST_CALLER) {
  cuda_on_host::WaitForPeer({flag, value, over}, {file, line});
}

inline float MaxOrNan(float a, float b) { return a != a || b != b ? a + b : a < b ? b : a; }

inline void CpAsync16(void* shared, const void* global, bool valid = true, CUDA_ON_HOST_CALLER) {
  cuda_on_host::StartCopy(shared, global, 16, valid, {file, line});
}
inline void IssueLoads() {}

inline void PrefetchLine(const void*) {}
inline void CpAsyncCommit() { cuda_on_host::CommitCopies(); }
template <int pending>
void CpAsyncWait() {
  cuda_on_host::AwaitCopies(pending);
}

namespace on_host {

struct LdMatrixLane {
  const void* row;
  uint32_t* out;
};

template <bool transposed>
void RunLdMatrix4(uint32_t mask, cuda_on_host::LaneArguments lanes,
                  const cuda_on_host::SourceLocation& location) {
  uint16_t elements[4][8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const void* row = static_cast<LdMatrixLane*>(lanes[lane])->row;
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
      cuda_on_host::KernelFault(
          location, "ldmatrix: the row of lane " + std::to_string(lane) + " is not 16-byte aligned");
    }
    std::memcpy(elements[lane / 8][lane % 8], row, 16);
  }
  (void)mask;
  for (int lane = 0; lane < 32; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      const int row = lane / 4, column = lane % 4 * 2;
      const uint16_t low = transposed ? elements[matrix][column][row] : elements[matrix][row][column];
      const uint16_t high =
          transposed ? elements[matrix][column + 1][row] : elements[matrix][row][column + 1];
      static_cast<LdMatrixLane*>(lanes[lane])->out[matrix] = static_cast<uint32_t>(high) << 16 | low;
    }
  }
}

struct MmaLane {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

inline float Half(uint32_t pair, int index) {
  return ToFloat(bf16{static_cast<uint16_t>(pair >> (16 * index))});
}

// Each output adds its products in FP32, k ascending.
inline void RunMmaBf16(uint32_t, cuda_on_host::LaneArguments lanes, const cuda_on_host::SourceLocation&) {
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const MmaLane& own = *static_cast<MmaLane*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      a[g][t + half] = Half(own.a[0], half);
      a[g + 8][t + half] = Half(own.a[1], half);
      a[g][t + 8 + half] = Half(own.a[2], half);
      a[g + 8][t + 8 + half] = Half(own.a[3], half);
      b[t + half][g] = Half(own.b[0], half);
      b[t + 8 + half][g] = Half(own.b[1], half);
      d[g][t + half] = own.d[half];
      d[g + 8][t + half] = own.d[2 + half];
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const MmaLane& own = *static_cast<MmaLane*>(lanes[lane]);
    for (int i = 0; i < 4; ++i) own.d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

}  // namespace on_host

inline void LdMatrix4(uint32_t (&out)[4], const void* shared_row, CUDA_ON_HOST_CALLER) {
  on_host::LdMatrixLane lane = {shared_row, out};
  cuda_on_host::MeetLanes(0xffffffffu, &on_host::RunLdMatrix4<false>, &lane, {file, line});
}
inline void LdMatrix4Transposed(uint32_t (&out)[4], const void* shared_row, CUDA_ON_HOST_CALLER) {
  on_host::LdMatrixLane lane = {shared_row, out};
  cuda_on_host::MeetLanes(0xffffffffu, &on_host::RunLdMatrix4<true>, &lane, {file, line});
}

inline void MmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], CUDA_ON_HOST_CALLER) {
  on_host::MmaLane lane = {d, a, b};
  cuda_on_host::MeetLanes(0xffffffffu, &on_host::RunMmaBf16, &lane, {file, line});
}
inline void FirstMmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], CUDA_ON_HOST_CALLER) {
  for (float& sum : d) sum = 0.0f;
  MmaBf16(d, a, b, file, line);
}

}  // namespace foredraft::cuda
