#include "ranks/host_gpus.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace foredraft {
namespace {

// NVML's names: its header is in the CUDA toolkit alone (NVML API Reference, "Device Queries").
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};

class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    ready_ = library_ != nullptr && Call<>("nvmlInit_v2");
  }
  ~Nvml() {
    if (ready_) Call<>("nvmlShutdown");
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  unsigned count() const {
    unsigned count = 0;
    return ready_ && Call("nvmlDeviceGetCount_v2", &count) ? count : 0;
  }
  // id: a number, or a UUID as nvidia-smi -L prints it.
  std::optional<HostGpu> Find(const std::string& id) const {
    NvmlDevice device = nullptr;
    unsigned index = 0;
    const bool found = absl::SimpleAtoi(id, &index) ? Call("nvmlDeviceGetHandleByIndex_v2", index, &device)
                                                    : Call("nvmlDeviceGetHandleByUUID", id.c_str(), &device);
    std::array<char, 96> name = {};
    NvmlMemory memory = {};
    if (!ready_ || !found || !Call("nvmlDeviceGetMemoryInfo", device, &memory) ||
        !Call("nvmlDeviceGetName", device, name.data(), static_cast<unsigned>(name.size() - 1))) {
      return std::nullopt;
    }
    return HostGpu{name.data(), static_cast<int64_t>(memory.free)};
  }

 private:
  // False where the library lacks the function or it fails.
  template <class... Args>
  bool Call(const char* name, Args... args) const {
    if (library_ == nullptr) return false;
    auto* const function = reinterpret_cast<int (*)(Args...)>(dlsym(library_, name));
    return function != nullptr && function(args...) == 0;
  }

  void* const library_;
  bool ready_ = false;
};

}  // namespace

std::vector<HostGpu> ReadHostGpus() {
  const Nvml nvml;
  std::vector<std::string> ids;
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    ids = absl::StrSplit(visible, ',', absl::SkipWhitespace());
  } else {
    for (unsigned i = 0; i < nvml.count(); ++i) ids.push_back(std::to_string(i));
  }
  std::vector<HostGpu> gpus;
  for (const std::string& id : ids) {
    std::optional<HostGpu> gpu = nvml.Find(id);
    if (!gpu.has_value()) break;
    gpus.push_back(*std::move(gpu));
  }
  return gpus;
}

}  // namespace foredraft
