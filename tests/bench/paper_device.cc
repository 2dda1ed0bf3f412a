#include "tests/bench/paper_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "tests/bench/op_launches.h"

namespace foredraft {
namespace {

constexpr double kHostLinkRate = 50e9;  // bytes per second between host and device

CostContext context;
std::map<std::string, PaperKernel> kernels;

// The clock of a branch: when its work so far ends, and what it has taken from memory.
struct Clock {
  double seconds = 0;
  double memory_bytes = 0;
};

class PaperStream;
using PaperOp = std::function<void(PaperStream&)>;

// An op of a capture, or where a branch begins or ends.
struct Recorded {
  enum Kind { kOp, kFork, kJoin } kind = kOp;
  bool on_branch = false;
  PaperOp op;
};

class PaperStream : public Stream {
 public:
  PaperStream(const GpuModel& gpu, bool branches, const Ops& cpu_ops, Stream& cpu_stream)
      : gpu_(gpu), branches_(branches), cpu_ops_(cpu_ops), cpu_stream_(cpu_stream) {}

  void Synchronize() override {}

  Stream& Fork() override {
    if (!branches_) return *this;
    CHECK(!branch_open_) << "a branch is open";
    if (branch_ == nullptr) {
      branch_ = std::make_unique<PaperStream>(gpu_, branches_, cpu_ops_, cpu_stream_);
      branch_->is_branch_ = true;
    }
    branch_open_ = true;
    branch_->recording_ = recording_;
    if (recording_ != nullptr) {
      recording_->push_back({.kind = Recorded::kFork});
      return *branch_;
    }
    fork_ = clock_;
    branch_->clock_ = clock_;
    branch_->in_graph_ = in_graph_;
    branch_->after_kernel_ = after_kernel_ = false;
    return *branch_;
  }
  void Join() override {
    if (!branches_) return;
    CHECK(branch_open_) << "no branch is open";
    branch_open_ = false;
    if (recording_ != nullptr) {
      recording_->push_back({.kind = Recorded::kJoin});
      return;
    }
    const double bytes = clock_.memory_bytes + branch_->clock_.memory_bytes - 2 * fork_.memory_bytes;
    clock_.seconds =
        std::max({clock_.seconds, branch_->clock_.seconds, fork_.seconds + bytes / gpu_.memory_rate});
    clock_.memory_bytes = fork_.memory_bytes + bytes;
    after_kernel_ = false;
  }

  // Runs the op, or records it.
  void Submit(PaperOp op) {
    if (recording_ == nullptr) return op(*this);
    recording_->push_back({.on_branch = is_branch_, .op = std::move(op)});
  }
  void Launch(const KernelLaunch& launch) {
    const double seconds = LaunchSeconds(launch, gpu_);
    const bool follows = std::exchange(after_kernel_, launch.programmatic) && launch.programmatic;
    const double gap = follows ? gpu_.follow_seconds : gpu_.edge_seconds;
    clock_.seconds += in_graph_ ? gap + seconds : std::max(gap + seconds, gpu_.host_seconds);
    clock_.memory_bytes += launch.memory_bytes;
    PaperKernel& kernel = kernels[launch.kernel];
    kernel.kernel = launch.kernel;
    ++kernel.launches;
    kernel.seconds += seconds;
  }
  template <class Params>
  void RunOnCpu(Op<Params> Ops::*op, const Params& params) {
    (cpu_ops_.*op)(cpu_stream_, params);
    cpu_stream_.Synchronize();
  }
  void Copy(size_t bytes) {
    clock_.seconds += gpu_.edge_seconds + static_cast<double>(bytes) / kHostLinkRate;
    after_kernel_ = false;
  }

  std::vector<Recorded> Capture(const std::function<void()>& record) {
    CHECK(recording_ == nullptr && !branch_open_);
    std::vector<Recorded> recorded;
    recording_ = &recorded;
    record();
    CHECK(!branch_open_);
    recording_ = nullptr;
    return recorded;
  }
  void Replay(const std::vector<Recorded>& recorded) {
    in_graph_ = true;
    after_kernel_ = false;
    for (const Recorded& r : recorded) {
      if (r.kind == Recorded::kFork) {
        Fork();
      } else if (r.kind == Recorded::kJoin) {
        Join();
      } else {
        r.op(r.on_branch ? *branch_ : *this);
      }
    }
    in_graph_ = false;
    after_kernel_ = false;
  }

  const GpuModel& gpu() const { return gpu_; }
  double seconds() const { return clock_.seconds; }

 private:
  const GpuModel& gpu_;
  const bool branches_;
  const Ops& cpu_ops_;
  Stream& cpu_stream_;
  Clock clock_;
  Clock fork_;
  std::vector<Recorded>* recording_ = nullptr;  // of the capture in progress
  bool in_graph_ = false;                       // a replay is in progress
  bool after_kernel_ = false;
  bool is_branch_ = false;
  bool branch_open_ = false;
  std::unique_ptr<PaperStream> branch_;
};

class PaperEvent : public Event {
 public:
  void Record(Stream& stream) override { seconds_ = static_cast<PaperStream&>(stream).seconds(); }
  bool Wait(std::chrono::steady_clock::time_point) const override { return true; }
  double SecondsSince(const Event& earlier) const override {
    return seconds_ - static_cast<const PaperEvent&>(earlier).seconds_;
  }

 private:
  double seconds_ = 0;
};

// A replay computes the launches anew: what they take depends on the context.
class PaperGraph : public Graph {
 public:
  explicit PaperGraph(std::vector<Recorded> recorded) : recorded_(std::move(recorded)) {}

  void Replay(Stream& stream) const override { static_cast<PaperStream&>(stream).Replay(recorded_); }
  size_t node_count() const override {
    return std::count_if(recorded_.begin(), recorded_.end(),
                         [](const Recorded& r) { return r.kind == Recorded::kOp; });
  }
  bool SameNodes(const Graph& other) const override { return node_count() == other.node_count(); }

 private:
  const std::vector<Recorded> recorded_;
};

// Which part of rows the next ops are of.
template <class Params>
void NotePart(const Params&) {}
void NotePart(const PartRowsParams&) { context.part = -1; }
void NotePart(const GroupRowsParams& p) { context.part = p.row_range == nullptr ? -1 : context.part + 1; }

template <class Params>
void LaunchAll(PaperStream& stream, const Params& params) {
  NotePart(params);
  for (const KernelLaunch& launch : LaunchesOf(params, context, stream.gpu())) stream.Launch(launch);
}

template <class Params>
void Submit(Stream& stream, const Params& params) {
  static_cast<PaperStream&>(stream).Submit([params](PaperStream& on) { LaunchAll(on, params); });
}

template <class Params, Op<Params> Ops::*op>
void SubmitSlots(Stream& stream, const Params& params) {
  static_cast<PaperStream&>(stream).Submit([params](PaperStream& on) {
    LaunchAll(on, params);
    on.RunOnCpu(op, params);
  });
}

std::unique_ptr<Device> CpuDevice() {
  auto device = CreateDevice("cpu", {});
  CHECK(device.ok()) << device.status().ToString();
  return *std::move(device);
}

}  // namespace

PaperDevice::PaperDevice(const GpuModel& gpu, bool branches)
    : gpu_(gpu), branches_(branches), cpu_(CpuDevice()), cpu_stream_(cpu_->CreateStream()) {}

PaperDevice::~PaperDevice() {
  for (const auto& [address, bytes] : mapped_) munmap(address, bytes);
}

void PaperDevice::SubmitKernel(Stream& stream, const KernelLaunch& launch) {
  static_cast<PaperStream&>(stream).Submit([launch](PaperStream& on) { on.Launch(launch); });
}

void PaperDevice::SetContext(const CostContext& shape) { context = shape; }

std::vector<PaperKernel> PaperDevice::TakeKernels() {
  std::vector<PaperKernel> taken;
  for (auto& [name, kernel] : std::exchange(kernels, {})) taken.push_back(std::move(kernel));
  std::sort(taken.begin(), taken.end(),
            [](const PaperKernel& a, const PaperKernel& b) { return a.seconds > b.seconds; });
  return taken;
}

absl::StatusOr<void*> PaperDevice::Allocate(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  void* const address =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return absl::ResourceExhaustedError("no room for addresses");
  mapped_.emplace_back(address, bytes);
  return address;
}

absl::StatusOr<void*> PaperDevice::AllocatePinned(size_t bytes) { return Allocate(bytes); }

DeviceMemory PaperDevice::memory() const {
  constexpr int64_t kEnough = int64_t{1} << 44;
  return {.free_bytes = kEnough, .total_bytes = kEnough};
}

PackedWeights PaperDevice::WeightsOf(int count, const PackedWeight& shape) {
  const int64_t bytes = int64_t{shape.n} * shape.k * static_cast<int64_t>(DTypeBytes(shape.format.code));
  PackedWeights weights = {.count = count, .first = shape, .data_stride = bytes};
  weights.first.data = *Allocate(bytes * count);
  if (IsF8(shape.format)) weights.first.scales = static_cast<float*>(*Allocate(bytes / 1024 + 4));
  weights.items = static_cast<PackedWeight*>(*Allocate(count * sizeof(PackedWeight)));
  return weights;
}

absl::StatusOr<PackedWeight> PaperDevice::PackWeight(std::span<const HostWeight> parts) {
  PackedWeight weight = {.n = 0, .k = parts[0].k, .format = parts[0].format};
  for (const HostWeight& part : parts) weight.n += part.n;
  return WeightsOf(1, weight).first;
}

absl::StatusOr<PackedWeights> PaperDevice::PackWeights(int count, const WeightParts& parts) {
  const auto first = parts(0);
  if (!first.ok()) return first.status();
  const auto weight = PackWeight(*first);
  if (!weight.ok()) return weight.status();
  return WeightsOf(count, *weight);
}

absl::StatusOr<PackedWeights> PaperDevice::MakeRandomWeights(int count, const RandomWeight& weight) {
  return WeightsOf(count, {.n = weight.n, .k = weight.k, .format = weight.format});
}

std::unique_ptr<Stream> PaperDevice::CreateStream() {
  return std::make_unique<PaperStream>(gpu_, branches_, cpu_->ops(), *cpu_stream_);
}
std::unique_ptr<Event> PaperDevice::CreateEvent() { return std::make_unique<PaperEvent>(); }

void PaperDevice::CopyToDevice(Stream& stream, void* device, const void* host, size_t bytes) {
  std::memcpy(device, host, bytes);
  static_cast<PaperStream&>(stream).Copy(bytes);
}
void PaperDevice::CopyPinnedToDevice(Stream& stream, void* device, const void* host, size_t bytes) {
  CopyToDevice(stream, device, host, bytes);
}
void PaperDevice::CopyToHost(Stream& stream, void* host, const void* device, size_t bytes) {
  std::memcpy(host, device, bytes);
  static_cast<PaperStream&>(stream).Copy(bytes);
}

std::unique_ptr<Graph> PaperDevice::Capture(Stream& stream, const std::function<void()>& record) {
  return std::make_unique<PaperGraph>(static_cast<PaperStream&>(stream).Capture(record));
}

const Ops& PaperDevice::ops() const {
  static constexpr Ops kOps = {
#define OP(name, Stem) .name = Submit<Stem##Params>,
#define SLOT_OP(name, Stem) .name = SubmitSlots<Stem##Params, &Ops::name>,
#include "kernels/ops/list.inc"
  };
  return kOps;
}

}  // namespace foredraft
