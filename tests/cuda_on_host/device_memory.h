#pragma once

// The memory of cudaMalloc: one address range that only kernels and copies may access. Host code that
// dereferences a device pointer gets a segmentation fault, as with a device. If much memory is in use,
// closing is expensive and is usually skipped.
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
  bool Free(void* pointer);      // false: not allocated here. Aborts if its guard was overwritten.
  // True if [pointer, pointer + bytes) is inside one allocation.
  bool Holds(const void* pointer, size_t bytes) const;
  bool Inside(const void* pointer) const { return pointer >= first_ && pointer < first_ + kAddresses; }
  size_t bytes_in_use() const { return bytes_in_use_; }

  // May be read and written from Open to the matching Close.
  void Open();
  void Close();
  // Between Open and Close: forbids access temporarily.
  void Guard(bool on) { Protect(on ? PROT_NONE : PROT_READ | PROT_WRITE); }

 private:
  static constexpr size_t kAddresses = size_t{64} << 30;

  void Protect(int protection);

  std::byte* first_ = nullptr;
  size_t used_ = 0;  // bytes allocated from first_; 0 again when all are freed
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
