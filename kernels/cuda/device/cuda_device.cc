#include "kernels/cuda/device/cuda_device.h"

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/device/spin_limit.h"
#include "kernels/cuda/gemm/cublaslt_gemm.h"
#include "kernels/cuda/gemm/packed_weight.h"
#include "kernels/cuda/gemm/weight_kind.h"
#include "kernels/weight_parts.h"

namespace foredraft {
namespace {

// 130100 is 13.1.0.
std::string CublasLtVersion() {
  const size_t version = cublasLtGetVersion();
  return absl::StrFormat("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

int Attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  CheckCuda(cudaGetDevice(&device), "current device");
  CheckCuda(cudaDeviceGetAttribute(&value, attribute, device), "attribute of a device");
  return value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CudaDevice::Create(const DeviceOptions& options) {
  ASSIGN_OR_RETURN(const CudaProbe probe, ProbeCudaDevice());
  const int multiprocessors = Attribute(cudaDevAttrMultiProcessorCount);
  std::string name =
      absl::StrFormat("cuda %s sm_%d%d%s %d SMs, cublasLt %s", probe.gpu, probe.major, probe.minor,
                      cuda::RunsHopperKernels() ? "a" : " generic", multiprocessors, CublasLtVersion());
  const TunedFor here = {.cublaslt = static_cast<int64_t>(cublasLtGetVersion()),
                         .gpu = probe.gpu,
                         .multiprocessors = multiprocessors};
  ASSIGN_OR_RETURN(const auto algorithms, LoadTunedAlgorithms(options.tuning_file, here));
  std::unique_ptr<TunedGemms> tuned_gemms;
  if (!algorithms.empty()) {
    absl::StrAppendFormat(&name, ", tuning %08x", TuningHash(algorithms));
    tuned_gemms = std::make_unique<TunedGemms>(algorithms);
  }
  return std::make_unique<CudaDevice>(std::move(name), probe, multiprocessors, std::move(tuned_gemms),
                                      StreamOptions{.forks = options.side_stream, .pdl = options.pdl});
}

CudaDevice::CudaDevice(std::string name, const CudaProbe& probe, int multiprocessor_count,
                       std::unique_ptr<TunedGemms> tuned_gemms, StreamOptions streams)
    : name_(std::move(name)),
      hardware_id_(probe.hardware_id),
      multiprocessor_count_(multiprocessor_count),
      streams_(streams),
      memory_(probe.gpu),
      tuned_gemms_(std::move(tuned_gemms)),
      setup_stream_(memory_, multiprocessor_count) {
  PrepareSpinReports();
}

CudaDevice::~CudaDevice() { CheckCuda(cudaDeviceSynchronize(), "finish the device"); }

const Ops& CudaDevice::ops() const {
  static constexpr Ops kOps = {
#define OP(name, Stem) .name = cuda::Stem,
#include "kernels/ops/list.inc"
  };
  return kOps;
}

absl::StatusOr<void*> CudaDevice::Allocate(size_t bytes) {
  ASSIGN_OR_RETURN(void* const memory, memory_.Allocate(bytes, memory_.purpose()));
  std::lock_guard<std::mutex> lock(setup_mutex_);
  CheckCuda(cudaMemsetAsync(memory, 0, bytes, setup_stream_.handle()), "zero memory");
  setup_stream_.Synchronize();
  return memory;
}

absl::StatusOr<void*> CudaDevice::AllocatePinned(size_t bytes) {
  ASSIGN_OR_RETURN(void* const memory, memory_.AllocatePinned(bytes));
  std::memset(memory, 0, bytes);
  return memory;
}

DeviceMemory CudaDevice::memory() const { return memory_.usage(); }

absl::StatusOr<PackedWeight> CudaDevice::AllocateWeights(const WeightLayout& layout, int count) {
  PackedWeight first{.n = layout.n, .k = layout.k, .format = layout.format};
  // Not zero-filled: the upload writes every byte.
  ASSIGN_OR_RETURN(first.data, memory_.Allocate(layout.data_stride() * count, memory_.purpose()));
  if (layout.scale_stride() == 0) return first;
  ASSIGN_OR_RETURN(void* const scales,
                   memory_.Allocate(layout.scale_stride() * count * sizeof(float), memory_.purpose()));
  first.scales = static_cast<const float*>(scales);
  return first;
}

absl::StatusOr<PackedWeight> CudaDevice::PackWeight(std::span<const HostWeight> parts) {
  ASSIGN_OR_RETURN(const WeightLayout layout, LayoutOf(parts));
  ASSIGN_OR_RETURN(const PackedWeight weight, AllocateWeights(layout, 1));
  std::lock_guard<std::mutex> lock(setup_mutex_);
  cuda::KindOf(layout.format).upload(setup_stream_, layout, parts, weight);
  setup_stream_.Synchronize();
  return weight;
}

absl::StatusOr<PackedWeights> CudaDevice::PackWeights(int count, const WeightParts& parts) {
  WeightLayout layout;
  PackedWeight first;
  for (int index = 0; index < count; ++index) {
    ASSIGN_OR_RETURN(const std::vector<HostWeight> hosts, parts(index));
    ASSIGN_OR_RETURN(const WeightLayout found, LayoutOf(hosts));
    if (index == 0) {
      layout = found;
      ASSIGN_OR_RETURN(first, AllocateWeights(layout, count));
    }
    RETURN_IF_ERROR(CheckArrayItem(index, found, layout));
    std::lock_guard<std::mutex> lock(setup_mutex_);
    cuda::KindOf(layout.format).upload(setup_stream_, layout, hosts, layout.Item(first, index));
  }
  return ArrayOf(layout, first, count);
}

absl::StatusOr<PackedWeights> CudaDevice::MakeRandomWeights(int count, const RandomWeight& weight) {
  RETURN_IF_ERROR(CheckGroup(weight.format));
  const WeightLayout layout{.n = weight.n, .k = weight.k, .format = weight.format};
  ASSIGN_OR_RETURN(const PackedWeight first, AllocateWeights(layout, count));
  {
    std::lock_guard<std::mutex> lock(setup_mutex_);
    cuda::KindOf(layout.format).fill_random(setup_stream_, weight, layout, first, count);
  }
  return ArrayOf(layout, first, count);
}

absl::StatusOr<PackedWeights> CudaDevice::ArrayOf(const WeightLayout& layout, const PackedWeight& first,
                                                  int count) {
  std::vector<PackedWeight> items;
  for (int index = 0; index < count; ++index) items.push_back(layout.Item(first, index));
  ASSIGN_OR_RETURN(PackedWeight* const device_items, AllocateArray<PackedWeight>(count));
  std::lock_guard<std::mutex> lock(setup_mutex_);
  setup_stream_.CopyToDevice(device_items, items.data(), items.size() * sizeof(PackedWeight));
  setup_stream_.Synchronize();
  return PackedWeights{.items = device_items,
                       .count = count,
                       .first = first,
                       .data_stride = layout.data_stride(),
                       .scale_stride = layout.scale_stride()};
}

std::unique_ptr<Stream> CudaDevice::CreateStream() {
  return std::make_unique<CudaStream>(memory_, multiprocessor_count_, tuned_gemms_.get(), streams_);
}

std::unique_ptr<Event> CudaDevice::CreateEvent() { return std::make_unique<CudaEvent>(); }

void CudaDevice::CopyToDevice(Stream& stream, void* device, const void* host, size_t bytes) {
  static_cast<CudaStream&>(stream).CopyToDevice(device, host, bytes);
}

void CudaDevice::CopyPinnedToDevice(Stream& stream, void* device, const void* host, size_t bytes) {
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  CHECK(!cuda_stream.capturing()) << "copy inside a capture";
  if (bytes == 0) return;
  CheckCuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda_stream.handle()),
            "copy to the device");
}

void CudaDevice::CopyToHost(Stream& stream, void* host, const void* device, size_t bytes) {
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  CHECK(!cuda_stream.capturing()) << "copy inside a capture";
  if (bytes == 0) return;
  CheckCuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cuda_stream.handle()),
            "copy to the host");
}

std::unique_ptr<Graph> CudaDevice::Capture(Stream& stream, const std::function<void()>& record) {
  CHECK(!memory_.frozen()) << "capture after the warm-up";
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  cuda_stream.BeginCapture();
  record();
  return std::make_unique<CudaGraph>(cuda_stream);
}

}  // namespace foredraft
