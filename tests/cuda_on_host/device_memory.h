#ifndef FOREDRAFT_TESTS_CUDA_ON_HOST_DEVICE_MEMORY_H_
#define FOREDRAFT_TESTS_CUDA_ON_HOST_DEVICE_MEMORY_H_

// What cudaMalloc hands out: one stretch of addresses which only kernels and copies may touch. Host code that
// follows a device pointer ends in a segmentation fault, as it would with a device; where closing is dear,
// because much is in use, it is left out most of the times.
//
// Thread: guarded by the runtime's lock.

#include <sys/mman.h>

#include <cstddef>
#include <map>

namespace cuda_on_host {

class DeviceMemory {
 public:
  DeviceMemory();

  void* Allocate(size_t bytes);  // filled with 0xff; null when there is no more
  bool Free(void* pointer);      // false: not handed out. Aborts when it was written past its end.
  // All of [pointer, pointer + bytes) lies in one allocation.
  bool Holds(const void* pointer, size_t bytes) const;
  bool Inside(const void* pointer) const { return pointer >= first_ && pointer < first_ + kAddresses; }
  size_t bytes_in_use() const { return bytes_in_use_; }

  // May be read and written from Open to the matching Close.
  void Open();
  void Close();
  // Between Open and Close: forbids it for a while.
  void Guard(bool on) { Protect(on ? PROT_NONE : PROT_READ | PROT_WRITE); }

 private:
  static constexpr size_t kAddresses = size_t{64} << 30;

  void Protect(int protection);

  std::byte* first_ = nullptr;
  size_t used_ = 0;  // bytes from first_ that were handed out; 0 again when all are freed
  size_t bytes_in_use_ = 0;
  int open_ = 0;
  int closes_ = 0;
  int protection_ = PROT_NONE;  // of the first protected_bytes_
  size_t protected_bytes_ = 0;
  std::map<const std::byte*, size_t> allocations_;  // first byte, bytes
};

class OpenMemory {
 public:
  explicit OpenMemory(DeviceMemory& memory) : memory_(memory) { memory_.Open(); }
  ~OpenMemory() { memory_.Close(); }
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;

 private:
  DeviceMemory& memory_;
};

}  // namespace cuda_on_host

#endif  // FOREDRAFT_TESTS_CUDA_ON_HOST_DEVICE_MEMORY_H_
