#include "kernels/cpu/device/cpu_device.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/cpu/device/kernels.h"
#include "kernels/cpu/gemm/packed_weight.h"
#include "kernels/cpu/gemm/random_weight.h"
#include "kernels/weight_parts.h"

namespace foredraft {
namespace {

#if defined(__x86_64__)
bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vnni");  // as every CPU with avx512bf16 has
}

bool HasAvx2() {
  // Clang 14 has no "f16c" in __builtin_cpu_supports.
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool HasAvxVnni() {
  // Clang 14 has no "avxvnni" in __builtin_cpu_supports either.
  constexpr unsigned kAvxVnni = 1 << 4;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return HasAvx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kAvxVnni) != 0;
}
#endif

struct IsaChoice {
  IsaKernels kernels;
  bool (*supported)();
};

// Widest first: the default is the first one that the machine supports. __builtin_cpu_supports also checks
// that the operating system saves the registers.
const IsaChoice kIsaChoices[] = {
#if defined(__x86_64__)
    {{"amx", "cpu amx-bf16", GemmBf16Amx, nullptr, GemmF8Amx, Gemm4BitAmx, DecodeNvfp4Avx512, nullptr,
      GemmInt8Avx512, EndGemmAmx, PackKeysAvx512, PackValuesAvx512, TileScoresAmx, nullptr, nullptr, nullptr,
      TileSoftmaxAvx512, TileSumAmx, DecodeLatentAvx512},
     [] { return HasAvx512() && MayUseAmx(); }},
    {{"avx512", "cpu avx512-bf16", GemmBf16Avx512, GemmBf16SegmentsAvx512, GemmF8Avx512, Gemm4BitAvx512,
      nullptr, GemmNvfp4Avx512, GemmInt8Avx512, nullptr, PackKeysAvx512, PackValuesAvx512, TileScoresAvx512,
      RowScoresAvx512, RowSumsAvx512, OrderSumsAvx512, TileSoftmaxAvx512, TileSumAvx512, DecodeLatentAvx512},
     HasAvx512},
    {{"avx2", "cpu avx2", GemmBf16Avx2, nullptr, GemmF8Avx2, Gemm4BitAvx2, DecodeNvfp4Avx2, nullptr,
      HasAvxVnni() ? GemmInt8AvxVnni : GemmInt8Avx2, nullptr, PackKeysAvx2, PackValuesAvx2, TileScoresAvx2,
      nullptr, nullptr, nullptr, TileSoftmaxPortable, TileSumAvx2, DecodeLatentPortable},
     HasAvx2},
#endif
    {{"portable", "cpu portable", GemmBf16Portable, nullptr, GemmF8Portable, Gemm4BitPortable,
      DecodeNvfp4Portable, nullptr, GemmInt8Portable, nullptr, PackKeysPortable, PackValuesPortable,
      TileScoresPortable, nullptr, nullptr, nullptr, TileSoftmaxPortable, TileSumPortable,
      DecodeLatentPortable},
     [] { return true; }},
};

absl::StatusOr<const IsaKernels*> ChooseIsa(const std::string& option) {
  std::vector<IsaPath> paths;
  for (const IsaChoice& choice : kIsaChoices) paths.push_back({choice.kernels.option, choice.supported()});
  ASSIGN_OR_RETURN(const int index, ChooseIsaPath(option, paths));
  return &kIsaChoices[index].kernels;
}

}  // namespace

absl::StatusOr<int> ChooseIsaPath(const std::string& wanted, std::span<const IsaPath> paths) {
  std::string allowed = "auto";
  bool known = false;
  for (size_t i = 0; i < paths.size(); ++i) {
    const bool is_wanted = wanted.empty() || wanted == "auto" || wanted == paths[i].name;
    if (is_wanted && paths[i].supported) return static_cast<int>(i);
    known = known || is_wanted;
    if (paths[i].supported) absl::StrAppend(&allowed, ", ", paths[i].name);
  }
  if (!known) {
    return absl::InvalidArgumentError(absl::StrFormat("cpu.isa: %s, allowed %s", wanted, allowed));
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("cpu.isa: %s, allowed %s: this CPU does not have %s", wanted, allowed, wanted));
}

namespace {

// Leaves pages where they are: the nodes of a synthetic machine do not exist.
class NoPagePlacer : public PagePlacer {
 public:
  void Bind(void*, size_t, int) override {}
  void Interleave(void*, size_t, std::span<const int>) override {}
};

std::vector<int> OsNodes(const ThreadPlacement& placement) {
  std::vector<int> nodes;
  for (const ThreadPlacement::Node& node : placement.nodes) nodes.push_back(node.os_index);
  return nodes;
}

absl::Status NoThreads(int threads, const std::system_error& error) {
  return absl::ResourceExhaustedError(
      absl::StrFormat("cpu.threads: %d: the system has fewer: %s", threads, error.code().message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CpuDevice::Create(const DeviceOptions& options) {
  if (options.threads < 1) {
    return absl::InvalidArgumentError(absl::StrFormat("threads: %d, allowed from 1", options.threads));
  }
  if (options.numa && options.ranks_here == 1) {
    if (!options.topology.empty()) {
      ASSIGN_OR_RETURN(const CpuTopology topology, SyntheticTopology(options.topology));
      ThreadPlacement placement = PlaceThreads(topology, options.threads, /*pin=*/false);
      placement.cpus.clear();
      return CreateOnNodes(placement, std::make_unique<NoPagePlacer>(), options);
    }
    const ThreadPlacement placement = PlaceThreads(ReadTopology(), options.threads, options.pin);
    if (placement.nodes.size() > 1) {
      return CreateOnNodes(placement, std::make_unique<KernelPagePlacer>(), options);
    }
  }
  ASSIGN_OR_RETURN(const IsaKernels* const isa, ChooseIsa(options.isa));
  try {
    return std::make_unique<CpuDevice>(options, *isa);
  } catch (const std::system_error& error) {
    return NoThreads(options.threads, error);
  }
}

absl::StatusOr<std::unique_ptr<Device>> CpuDevice::CreateOnNodes(const ThreadPlacement& placement,
                                                                 std::unique_ptr<PagePlacer> placer,
                                                                 const DeviceOptions& options) {
  ASSIGN_OR_RETURN(const IsaKernels* const isa, ChooseIsa(options.isa));
  try {
    return std::make_unique<CpuDevice>(placement, std::move(placer), *isa, options.int8_inputs);
  } catch (const std::system_error& error) {
    return NoThreads(placement.thread_count(), error);
  }
}

CpuDevice::CpuDevice(const DeviceOptions& options, const IsaKernels& isa)
    : isa_(isa), int8_inputs_(options.int8_inputs), pool_(options.threads, options.pin, options.ranks_here) {}

CpuDevice::CpuDevice(const ThreadPlacement& placement, std::unique_ptr<PagePlacer> placer,
                     const IsaKernels& isa, bool int8_inputs)
    : isa_(isa),
      int8_inputs_(int8_inputs),
      pool_(placement),
      placer_(std::move(placer)),
      shared_memory_([nodes = OsNodes(placement), placer = placer_.get()](void* first, size_t bytes) {
        placer->Interleave(first, bytes, nodes);
      }) {
  for (const int node : OsNodes(placement)) {
    node_memory_.emplace_back(
        [node, placer = placer_.get()](void* first, size_t bytes) { placer->Bind(first, bytes, node); });
  }
}

CpuDevice::~CpuDevice() = default;

std::string CpuDevice::name() const { return isa_.name; }

const Ops& CpuDevice::ops() const {
  static constexpr Ops kOps = {
#define OP(name, Stem) .name = Submit<Stem##Params, cpu::Stem>,
#include "kernels/ops/list.inc"
  };
  return kOps;
}

absl::StatusOr<void*> CpuDevice::Allocate(size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CHECK(!frozen_) << "device memory allocated after the warm-up: " << bytes << " bytes for " << purpose_;
  }
  return AllocateZeroed(bytes, kNoNode);
}

absl::StatusOr<void*> CpuDevice::AllocateZeroed(size_t bytes, int node) {
  std::lock_guard<std::mutex> lock(mutex_);
  HostMemory& memory = node == kNoNode || node_memory_.empty() ? shared_memory_ : node_memory_[node];
  void* allocation = memory.Allocate(bytes);
  if (allocation == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("no memory for %d bytes%s%s", bytes, purpose_.empty() ? "" : " of ", purpose_));
  }
  return allocation;
}

void CpuDevice::BeginPurpose(const std::string& purpose) {
  std::lock_guard<std::mutex> lock(mutex_);
  purpose_ = purpose;
}

absl::StatusOr<void*> CpuDevice::AllocatePinned(size_t bytes) { return AllocateZeroed(bytes, kNoNode); }

DeviceMemory CpuDevice::memory() const {
  const int64_t page = sysconf(_SC_PAGE_SIZE);
  return {.free_bytes = sysconf(_SC_AVPHYS_PAGES) * page, .total_bytes = sysconf(_SC_PHYS_PAGES) * page};
}

void CpuDevice::Freeze() {
  std::lock_guard<std::mutex> lock(mutex_);
  frozen_ = true;
}

absl::StatusOr<PackedWeight> CpuDevice::PackWeight(std::span<const HostWeight> parts) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CHECK(!frozen_) << "weight packed after the warm-up";
  }
  return PackParts(parts, pool_, [this](size_t bytes, int node) { return AllocateZeroed(bytes, node); });
}

absl::StatusOr<PackedWeights> CpuDevice::PackWeights(int count, const WeightParts& parts) {
  ASSIGN_OR_RETURN(PackedWeight* const items, AllocateArray<PackedWeight>(count));
  for (int index = 0; index < count; ++index) {
    ASSIGN_OR_RETURN(const std::vector<HostWeight> hosts, parts(index));
    ASSIGN_OR_RETURN(items[index], PackWeight(hosts));
    RETURN_IF_ERROR(CheckArrayItem(index, items[index], items[0]));
  }
  return PackedWeights{.items = items, .count = count, .first = count > 0 ? *items : PackedWeight{}};
}

absl::StatusOr<PackedWeights> CpuDevice::MakeRandomWeights(int count, const RandomWeight& weight) {
  RandomHostWeight host(weight);
  return PackWeights(count, [&](int index) -> absl::StatusOr<std::vector<HostWeight>> {
    return std::vector<HostWeight>{host.Make(index, pool_)};
  });
}

std::unique_ptr<Stream> CpuDevice::CreateStream() {
  return std::make_unique<CpuStream>(CpuContext{pool_, isa_, int8_inputs_});
}

std::unique_ptr<Event> CpuDevice::CreateEvent() { return std::make_unique<CpuEvent>(); }

void CpuDevice::CopyToDevice(Stream& stream, void* device, const void* host, size_t bytes) {
  CHECK(!static_cast<CpuStream&>(stream).capturing()) << "copy inside a capture";
  if (bytes > 0) std::memcpy(device, host, bytes);
}

void CpuDevice::CopyPinnedToDevice(Stream& stream, void* device, const void* host, size_t bytes) {
  CopyToDevice(stream, device, host, bytes);
}

void CpuDevice::CopyToHost(Stream& stream, void* host, const void* device, size_t bytes) {
  CHECK(!static_cast<CpuStream&>(stream).capturing()) << "copy inside a capture";
  if (bytes > 0) std::memcpy(host, device, bytes);
}

std::unique_ptr<Graph> CpuDevice::Capture(Stream& stream, const std::function<void()>& record) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CHECK(!frozen_) << "capture after the warm-up";
  }
  auto& cpu_stream = static_cast<CpuStream&>(stream);
  cpu_stream.BeginCapture();
  record();
  return cpu_stream.EndCapture();
}

}  // namespace foredraft
