// NVML of a host with four GPUs, as much as ranks/host_gpus.cc calls; the third's memory cannot be read.

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
bool open = false;
char devices[4];

int IndexOf(const void* device) { return static_cast<int>(static_cast<const char*>(device) - devices); }
}  // namespace

extern "C" {

int nvmlInit_v2() {
  if (std::getenv("NVML_FAILS") != nullptr) return 9;  // NVML_ERROR_DRIVER_NOT_LOADED
  open = true;
  return 0;
}
int nvmlShutdown() {
  open = false;
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 4;
  return open ? 0 : 1;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (!open || index >= 4) return 2;
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (!open || std::strcmp(uuid, "GPU-of-index-1") != 0) return 6;
  *device = &devices[1];
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  if (!open || IndexOf(device) == 2) return 3;
  memory[0] = 140ull << 30;
  memory[1] = (100ull + IndexOf(device)) << 30;
  memory[2] = memory[0] - memory[1];
  return 0;
}
int nvmlDeviceGetName(void* device, char* name, unsigned size) {
  if (!open) return 1;
  std::snprintf(name, size, "GPU %d in software", IndexOf(device));
  return 0;
}

}  // extern "C"
