#include "engine/comm/nccl_communicator.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/cuda_stream.h"

namespace foredraft {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kStagingBytes = size_t{1} << 20;
// NCCL's channels, each a CTA of the collective's kernel. The largest exchange of a step is R1's at 8 ranks
// and 128 rows per rank: 1,024 rows x 7,168 BF16 = 14.7 MB, of which a rank receives 7/8. NVLink 4 carries
// 450 GB/s per direction: 29 us. A CTA copies some 26 GB/s, an estimate: 8 CTAs take 62 us, 16 take 31 us,
// and more would only take SMs (16 are 12% of 132) from the kernels that run at the same time. Not measured
// yet; where NCCL_MAX_CTAS is set in the environment, NCCL uses that instead.
constexpr int kMaxCtas = 16;
constexpr char kIdKey[] = "nccl/id";
// How long a stream may take to drain once its collectives are revoked.
constexpr std::chrono::milliseconds kRevokeGrace{5000};

cudaStream_t HandleOf(Stream& stream) { return static_cast<CudaStream&>(stream).handle(); }

// Records a captured collective's parameters, which SameNodes compares.
template <class Params>
void NoteCollective(Stream& stream, const void* function, const Params& params) {
  static_assert(std::is_trivially_copyable_v<Params>);
  Params copy = params;
  __builtin_clear_padding(&copy);
  static_cast<CudaStream&>(stream).PrepareLaunch(function, LaunchShape{}, &copy, sizeof(Params));
}

// The pause between two polls: yields at first, because a step is short, and sleeps longer later.
class Backoff {
 public:
  void Wait() {
    if (++polls_ < 1000) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(polls_ < 2000 ? 20 : 500));
  }

 private:
  int polls_ = 0;
};

bool IsError(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

bool AllEqual(const RankRows& rows, int ranks) {
  return std::all_of(rows.rows.begin(), rows.rows.begin() + ranks,
                     [&](int32_t count) { return count == rows[0]; });
}

ncclRedOp_t OpOf(Reduction reduction) {
  return reduction == Reduction::kSum ? ncclSum : reduction == Reduction::kMin ? ncclMin : ncclMax;
}

// Sets an environment variable of NCCL. If an operator set another value, a warning says why it is
// overridden.
void Require(const char* variable, const char* value, const char* why) {
  if (const char* const given = std::getenv(variable); given != nullptr) {
    if (std::string_view(given) == value) return;
    Log(LogLevel::kWarning, "%s is %s, not %s: %s", variable, value, given, why);
  }
  setenv(variable, value, /*overwrite=*/1);
}

// NCCL reads the environment at its first use and prefers it to ncclConfig_t and to its files. getenv takes
// no lock, and ranks may be threads of one process: the first of them sets all, before it uses NCCL, and the
// others write nothing.
void SetVariables(const std::string& interface) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  // NCCL takes the interface only from the environment. A value that the operator set is kept.
  setenv("NCCL_SOCKET_IFNAME", interface.c_str(), /*overwrite=*/0);
  Require("NCCL_COMM_BLOCKING", "0", "calls that block have no deadline");
  Require("NCCL_GRAPH_MIXING_SUPPORT", "1", "a prefill is launched while a captured step may run");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::Create(const CommunicatorOptions& options,
                                                                       Device& device,
                                                                       RendezvousStore& store) {
  SetVariables(options.interface);
  std::unique_ptr<NcclCommunicator> comm(new NcclCommunicator(options, device));
  comm->host_stream_ = device.CreateStream();
  ASSIGN_OR_RETURN(comm->staging_, device.Allocate(kStagingBytes));
  RETURN_IF_ERROR(comm->Join(store, options.connect_timeout));
  if (options.shared_memory) {
    ASSIGN_OR_RETURN(comm->windows_, PeerWindows::Connect(options.rank, options.size, store,
                                                          Clock::now() + options.connect_timeout));
  }
  return std::unique_ptr<Communicator>(std::move(comm));
}

NcclCommunicator::NcclCommunicator(const CommunicatorOptions& options, Device& device)
    : rank_(options.rank), size_(options.size), step_timeout_(options.step_timeout), device_(device) {}

// ncclCommAbort, unlike ncclCommDestroy, does not wait for other ranks.
NcclCommunicator::~NcclCommunicator() {
  if (comm_ != nullptr) ncclCommAbort(comm_);
}

absl::Status NcclCommunicator::Join(RendezvousStore& store, std::chrono::seconds timeout) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Clock::time_point deadline = Clock::now() + timeout;
  ncclUniqueId id;
  if (rank_ == 0) {
    if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess) {
      return absl::UnavailableError(absl::StrFormat("rank 0: NCCL: %s", ncclGetErrorString(result)));
    }
    RETURN_IF_ERROR(store.Set(kIdKey, std::string(id.internal, sizeof(id.internal))));
  } else {
    ASSIGN_OR_RETURN(const std::string bytes, store.Get(kIdKey, deadline));
    if (bytes.size() != sizeof(id.internal)) {
      return absl::UnavailableError(absl::StrFormat("rank %d: NCCL: the group's id has %d bytes, not %d",
                                                    rank_, bytes.size(), sizeof(id.internal)));
    }
    std::memcpy(id.internal, bytes.data(), sizeof(id.internal));
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = kMaxCtas;
  const ncclResult_t result = ncclCommInitRankConfig(&comm_, size_, id, rank_, &config);
  if (IsError(result)) {
    return absl::UnavailableError(
        absl::StrFormat("rank %d: NCCL: joining %d ranks: %s", rank_, size_, ncclGetErrorString(result)));
  }
  return Settle("joining the group", deadline);
}

absl::Status NcclCommunicator::Settle(const char* operation, Clock::time_point deadline) {
  Backoff backoff;
  while (true) {
    ncclResult_t state = ncclSuccess;
    if (const ncclResult_t result = ncclCommGetAsyncError(comm_, &state); result != ncclSuccess) {
      state = result;
    }
    if (state == ncclSuccess) return absl::OkStatus();
    if (state != ncclInProgress) {
      return absl::UnavailableError(absl::StrFormat("rank %d: %s: NCCL: %s: %s", rank_, operation,
                                                    ncclGetErrorString(state), ncclGetLastError(comm_)));
    }
    if (status_.failed()) return status_.status();
    if (Clock::now() >= deadline) {
      return absl::UnavailableError(
          absl::StrFormat("rank %d: %s: NCCL did not settle in time", rank_, operation));
    }
    backoff.Wait();
  }
}

void NcclCommunicator::Enqueue(const char* operation, const std::function<void(const Check& check)>& submit) {
  if (status_.failed()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  ncclResult_t first_error = ncclSuccess;
  const Check check = [&first_error](ncclResult_t result) {
    if (first_error == ncclSuccess && IsError(result)) first_error = result;
  };
  check(ncclGroupStart());
  if (first_error == ncclSuccess) submit(check);
  check(ncclGroupEnd());
  if (first_error != ncclSuccess) return Fail(operation, ncclGetErrorString(first_error));
  const absl::Status settled = Settle(operation, Clock::now() + step_timeout_);
  settled_ = settled.ok();
  if (!settled_) Fail(operation, std::string(settled.message()));
}

// After a failed enqueue, ncclCommRevoke of NCCL 2.28 frees the enqueued work but keeps its address, and
// ncclCommAbort then frees it a second time. So a communicator whose enqueue failed is not revoked: only the
// destructor's ncclCommAbort ends it.
void NcclCommunicator::Fail(const char* operation, const std::string& reason) {
  status_.Fail(absl::UnavailableError(absl::StrFormat("rank %d: %s: %s", rank_, operation, reason)));
  if (windows_ != nullptr) windows_->End();
  if (std::exchange(over_, true) || !settled_) return;
  ncclCommRevoke(comm_, NCCL_REVOKE_DEFAULT);
  revoked_ = true;
}

absl::Status NcclCommunicator::status() const {
  if (status_.failed()) return status_.status();
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  ncclResult_t error = ncclSuccess;
  if (lock.owns_lock() && ncclCommGetAsyncError(comm_, &error) == ncclSuccess && IsError(error)) {
    status_.Fail(absl::UnavailableError(
        absl::StrFormat("rank %d: NCCL: %s: %s", rank_, ncclGetErrorString(error), ncclGetLastError(comm_))));
  }
  return status_.status();
}

void NcclCommunicator::AllGather(Stream& stream, const AllGatherParams& params) {
  if (Pushes(params)) {
    if (!status_.failed()) windows_->AllGather(stream, params);
    return;
  }
  const RankRows& rows = params.rows;
  NoteCollective(stream, reinterpret_cast<const void*>(&ncclAllGather), params);
  Enqueue("all_gather", [&](const Check& check) {
    for (const GatherPart& part : params.parts) {
      if (part.row_bytes == 0) continue;
      const int64_t own_bytes = rows[rank_] * part.row_bytes;
      if (AllEqual(rows, size_)) {
        if (own_bytes == 0) continue;
        check(ncclAllGather(part.in, part.out, own_bytes, ncclInt8, comm_, HandleOf(stream)));
        continue;
      }
      for (int peer = 0; peer < size_; ++peer) {
        auto* const to = static_cast<std::byte*>(part.out) + rows.offset(peer) * part.row_bytes;
        if (own_bytes > 0 && params.set.has(peer)) {
          check(ncclSend(part.in, own_bytes, ncclInt8, peer, comm_, HandleOf(stream)));
        }
        if (rows[peer] == 0) continue;
        check(ncclRecv(to, rows[peer] * part.row_bytes, ncclInt8, peer, comm_, HandleOf(stream)));
      }
    }
  });
}

void NcclCommunicator::AllToAll(Stream& stream, const AllToAllParams& params) {
  if (Pushes(params)) {
    if (!status_.failed()) windows_->AllToAll(stream, params);
    return;
  }
  const RankRows& rows = params.rows;
  const int64_t own_bytes = rows[rank_] * params.row_bytes;
  NoteCollective(stream, reinterpret_cast<const void*>(&ncclAlltoAll), params);
  Enqueue("all_to_all", [&](const Check& check) {
    if (AllEqual(rows, size_)) {
      if (own_bytes == 0) return;
      check(ncclAlltoAll(params.in, params.out, own_bytes, ncclInt8, comm_, HandleOf(stream)));
      return;
    }
    for (int peer = 0; peer < size_; ++peer) {
      if (!params.set.has(peer)) continue;
      const auto* from = static_cast<const std::byte*>(params.in) + rows.offset(peer) * params.row_bytes;
      auto* const to = static_cast<std::byte*>(params.out) + params.set.index(peer) * own_bytes;
      if (rows[peer] > 0) {
        check(ncclSend(from, rows[peer] * params.row_bytes, ncclInt8, peer, comm_, HandleOf(stream)));
      }
      if (own_bytes > 0) check(ncclRecv(to, own_bytes, ncclInt8, peer, comm_, HandleOf(stream)));
    }
  });
}

absl::Status NcclCommunicator::Await(Stream& stream) {
  Clock::time_point deadline = Clock::now() + (over_ ? kRevokeGrace : step_timeout_);
  Backoff backoff;
  while (true) {
    const cudaError_t state = cudaStreamQuery(HandleOf(stream));
    if (state == cudaSuccess) return status();
    const bool late = Clock::now() >= deadline;
    if (over_ && (late || !revoked_)) return status();  // the GPU still runs; the destructor ends it
    const bool broken = state != cudaErrorNotReady;
    if (!over_ && (broken || late || !status().ok())) {
      // A failure that is recorded already keeps its reason.
      std::lock_guard<std::mutex> lock(mutex_);
      Fail("step", broken ? cudaGetErrorString(state)
                          : absl::StrFormat("did not end within %d ms", step_timeout_.count()));
      deadline = Clock::now() + kRevokeGrace;
    }
    if (broken) return status();
    backoff.Wait();
  }
}

absl::Status NcclCommunicator::AllReduce(std::span<int64_t> values, Reduction reduction) {
  CHECK_LE(values.size_bytes(), kStagingBytes);
  if (status_.failed()) return status();
  device_.CopyToDevice(*host_stream_, staging_, values.data(), values.size_bytes());
  Enqueue("all_reduce", [&](const Check& check) {
    check(ncclAllReduce(staging_, staging_, values.size(), ncclInt64, OpOf(reduction), comm_,
                        HandleOf(*host_stream_)));
  });
  RETURN_IF_ERROR(Await(*host_stream_));
  device_.CopyToHost(*host_stream_, values.data(), staging_, values.size_bytes());
  return Await(*host_stream_);
}

absl::Status NcclCommunicator::Broadcast(std::span<std::byte> bytes, int root) {
  if (status_.failed()) return status();
  for (size_t first = 0; first < bytes.size(); first += kStagingBytes) {
    const std::span<std::byte> piece = bytes.subspan(first, std::min(kStagingBytes, bytes.size() - first));
    if (rank_ == root) device_.CopyToDevice(*host_stream_, staging_, piece.data(), piece.size());
    Enqueue("broadcast", [&](const Check& check) {
      check(ncclBroadcast(staging_, staging_, piece.size(), ncclInt8, root, comm_, HandleOf(*host_stream_)));
    });
    RETURN_IF_ERROR(Await(*host_stream_));
    device_.CopyToHost(*host_stream_, piece.data(), staging_, piece.size());
    RETURN_IF_ERROR(Await(*host_stream_));
  }
  return status();
}

absl::Status NcclCommunicator::Barrier() {
  int64_t nothing = 0;
  return AllReduce(std::span(&nothing, 1), Reduction::kSum);
}

}  // namespace foredraft
