// NCCL for ranks that are threads of one process, each on a device of its own (cudaSetDevice). The data of
// the collectives moves in nccl_exchange.cc.
//
// Only non-blocking communicators. As in NCCL, a group of calls takes effect later: it is in progress until
// ncclCommGetAsyncError has been called a few times, and only then is it on its stream, or a node of the
// stream's capture. What this checks of the caller, by aborting:
//
//  - one thread at a time per communicator: NCCL 2.28 frees a finished group's job in ncclCommGetAsyncError
//    without a lock. The job here is not locked either, so ThreadSanitizer reports such a caller too;
//  - no revoke while a group is in progress or has failed: NCCL 2.28 frees that group's job, keeps its
//    address, and frees it again when the communicator is aborted;
//  - no graph holds a communicator's collectives when it is aborted: NCCL would wait for the graph.

#include <nccl.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_on_host/device_thread.h"
#include "tests/cuda_on_host/nccl_exchange.h"
#include "tests/cuda_on_host/nccl_faults.h"
#include "tests/cuda_on_host/runtime_state.h"

using cuda_on_host::LockedState;
using cuda_on_host::NcclCall;
using cuda_on_host::NcclClique;
using cuda_on_host::NcclGroup;
using cuda_on_host::NcclKind;

// A group of calls, or the joining, that is in progress.
struct NcclJob {
  int polls = 0;                      // left
  std::function<ncclResult_t()> run;  // ncclInProgress: not yet
  ncclResult_t result = ncclInProgress;
};

struct ncclComm {
  std::shared_ptr<NcclClique> clique;
  int rank = 0;
  int device = 0;
  std::shared_ptr<std::atomic<int>> captured = std::make_shared<std::atomic<int>>(0);  // groups in graphs
  int captures_before = 0;  // of its device, when it was made

  // Set by the one thread that is inside NCCL. Relaxed, so that it orders nothing for ThreadSanitizer.
  std::atomic<bool> in_use{false};
  std::unique_ptr<NcclJob> job;  // null: nothing in progress, and nothing has failed
  ncclResult_t error = ncclSuccess;
  bool revoked = false;
  std::string last_error;
};

namespace {

struct NcclState {
  // False: no fault is set, so `mutex` need not be taken, which would order threads for ThreadSanitizer.
  std::atomic<bool> faulty{false};
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<NcclClique>> cliques;  // by id
  std::map<std::pair<std::string, int>, ncclResult_t> faults;  // by function and device
  std::map<int, ncclResult_t> async_errors;                    // by device
  int next_id = 1;
  int polls = 2;
  int max_ctas = 0;
};
NcclState& Nccl() {
  static NcclState& state = *new NcclState;
  return state;
}

// A fault that a test has set for this call; taken once.
ncclResult_t TakeFault(const std::string& function, int device) {
  if (!Nccl().faulty.load(std::memory_order_relaxed)) return ncclSuccess;
  std::lock_guard<std::mutex> lock(Nccl().mutex);
  const auto found = Nccl().faults.find({function, device});
  if (found == Nccl().faults.end()) return ncclSuccess;
  const ncclResult_t result = found->second;
  Nccl().faults.erase(found);
  return result;
}
ncclResult_t TakeFault(const char* function) { return TakeFault(function, cuda_on_host::CurrentDevice()); }

int Polls() {
  std::lock_guard<std::mutex> lock(Nccl().mutex);
  return Nccl().polls;
}

[[noreturn]] void Misuse(const char* what) { cuda_on_host::KernelFault({"NCCL", 0}, what); }

class InUse {
 public:
  explicit InUse(ncclComm& comm) : comm_(comm) {
    if (comm_.in_use.exchange(true, std::memory_order_relaxed)) Misuse("two threads use one communicator");
    std::this_thread::yield();  // gives another thread the time to be wrong
  }
  ~InUse() { comm_.in_use.store(false, std::memory_order_relaxed); }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  ncclComm& comm_;
};

// Takes over an error that a test has set.
void MeetAsyncError(ncclComm& comm) {
  if (!Nccl().faulty.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(Nccl().mutex);
  const auto failed = Nccl().async_errors.find(comm.device);
  if (failed == Nccl().async_errors.end()) return;
  comm.error = failed->second;
  comm.last_error = "a peer closed its connection";
}

// The state of the communicator; ends its job when that has finished well, and no error was met since.
ncclResult_t Poll(ncclComm& comm) {
  if (comm.job != nullptr) {
    NcclJob& job = *comm.job;
    if (job.result == ncclInProgress && job.polls-- <= 0) job.result = job.run();
    if (job.result != ncclSuccess) return job.result;
  }
  MeetAsyncError(comm);
  if (comm.error == ncclSuccess) comm.job.reset();
  return comm.error;
}

void Begin(ncclComm& comm, int polls, std::function<ncclResult_t()> run) {
  comm.job = std::make_unique<NcclJob>(NcclJob{.polls = polls, .run = std::move(run)});
}

struct OpenGroup {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<NcclCall> calls;
};
thread_local OpenGroup open_group;

ncclResult_t Add(const char* function, ncclComm* comm, cudaStream_t stream, const NcclCall& call) {
  OpenGroup& group = open_group;
  if (group.depth == 0) Misuse("a call outside a group is not emulated");
  const InUse use(*comm);
  ncclResult_t result = TakeFault(function);
  if (result == ncclSuccess && comm->revoked) result = ncclInvalidUsage;
  if (result == ncclSuccess) result = Poll(*comm);
  if (result == ncclInProgress) result = ncclInvalidArgument;  // used before it settled
  if (result != ncclSuccess) {
    group.error = result;
    return result;
  }
  if (!group.calls.empty() && (group.comm != comm || group.stream != stream)) {
    Misuse("a group of several communicators or streams is not emulated");
  }
  group.comm = comm;
  group.stream = stream;
  group.calls.push_back(call);
  return ncclSuccess;
}

size_t Bytes(size_t count, ncclDataType_t type) { return type == ncclInt64 ? count * 8 : count; }

// Puts a group on its stream, where it waits for the groups of the other ranks.
ncclResult_t Launch(ncclComm& comm, cudaStream_t stream, std::vector<NcclCall> calls) {
  if (const ncclResult_t fault = TakeFault(cuda_on_host::kNcclLaunch, comm.device); fault != ncclSuccess) {
    comm.last_error = "the launch failed";
    return fault;
  }
  const LockedState state;
  const auto group = std::make_shared<NcclGroup>(NcclGroup{.calls = std::move(calls)});
  std::shared_ptr<void> captured;  // counts while a node, or a copy of it, exists
  if (const auto& capture = cuda_on_host::StreamOf(stream).capture; capture != nullptr) {
    group->graph = capture->number - comm.captures_before;
    ++*comm.captured;
    captured = std::shared_ptr<void>(nullptr, [count = comm.captured](void*) { --*count; });
  }
  const cudaError_t error = cuda_on_host::AppendWork(
      *state, stream, [&state = *state, clique = comm.clique, rank = comm.rank, group, captured] {
        return clique->Continue(rank, *group, state.memory);
      });
  return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // namespace

namespace cuda_on_host {

void SetNcclPolls(int polls) {
  std::lock_guard<std::mutex> lock(Nccl().mutex);
  Nccl().polls = polls;
}

void FailNccl(const std::string& function, int device, ncclResult_t result) {
  std::lock_guard<std::mutex> lock(Nccl().mutex);
  Nccl().faults[{function, device}] = result;
  Nccl().faulty.store(true, std::memory_order_relaxed);
}

void SetNcclAsyncError(int device, ncclResult_t result) {
  std::lock_guard<std::mutex> lock(Nccl().mutex);
  Nccl().async_errors[device] = result;
  Nccl().faulty.store(true, std::memory_order_relaxed);
}

void ResetNccl() {
  std::lock_guard<std::mutex> lock(Nccl().mutex);
  Nccl().cliques.clear();
  Nccl().faults.clear();
  Nccl().async_errors.clear();
  Nccl().faulty.store(false, std::memory_order_relaxed);
  Nccl().polls = 2;
}

int NcclMaxCtas() {
  std::lock_guard<std::mutex> lock(Nccl().mutex);
  return Nccl().max_ctas;
}

}  // namespace cuda_on_host

// ---- communicators ----

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const ncclResult_t fault = TakeFault("ncclGetUniqueId"); fault != ncclSuccess) return fault;
  std::lock_guard<std::mutex> lock(Nccl().mutex);
  *id = {};
  std::strcpy(id->internal, ("clique " + std::to_string(Nccl().next_id++)).c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *comm = nullptr;
  if (const ncclResult_t fault = TakeFault("ncclCommInitRankConfig"); fault != ncclSuccess) return fault;
  if (config->blocking != 0) Misuse("a blocking communicator is not emulated");
  auto made = std::make_unique<ncclComm>();
  made->rank = rank;
  made->device = cuda_on_host::CurrentDevice();
  {
    std::lock_guard<std::mutex> lock(Nccl().mutex);
    Nccl().max_ctas = config->maxCTAs;
    std::shared_ptr<NcclClique>& clique = Nccl().cliques[id.internal];
    if (clique == nullptr) clique = std::make_shared<NcclClique>(ranks);
    made->clique = clique;
  }
  {
    const LockedState state;
    made->captures_before = state->captures_begun[made->device];
    made->clique->Join(rank, made->device);
  }
  Begin(*made, 0, [comm = made.get()] {
    const LockedState state;
    if (!comm->clique->complete()) return ncclInProgress;
    const std::string duplicate = comm->clique->Duplicate();
    if (duplicate.empty()) return ncclSuccess;
    comm->last_error = "Duplicate GPU detected : " + duplicate;
    return ncclInvalidUsage;
  });
  *comm = made.release();
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const InUse use(*comm);
  if (const ncclResult_t fault = TakeFault("ncclCommGetAsyncError", comm->device); fault != ncclSuccess) {
    return fault;
  }
  *error = Poll(*comm);
  return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  const InUse use(*comm);
  if (flags != NCCL_REVOKE_DEFAULT || comm->revoked) return ncclInvalidArgument;
  if (comm->job != nullptr) Misuse("ncclCommRevoke while a group is in progress or has failed");
  comm->revoked = true;
  {
    const LockedState state;
    comm->clique->Stop(comm->rank);
  }
  Begin(*comm, Polls(), [] { return ncclSuccess; });
  return ncclInProgress;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  {
    const InUse use(*comm);
    if (*comm->captured > 0) Misuse("ncclCommAbort while a graph holds the communicator's collectives");
    const LockedState state;
    comm->clique->Stop(comm->rank);
  }
  delete comm;
  return ncclInProgress;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress"};
  return kTexts[result];
}

const char* ncclGetLastError(ncclComm_t comm) {
  const InUse use(*comm);
  return comm->last_error.c_str();
}

// ---- groups ----

ncclResult_t ncclGroupStart() {
  if (const ncclResult_t fault = TakeFault("ncclGroupStart"); fault != ncclSuccess) return fault;
  if (open_group.depth++ == 0) {
    open_group.error = ncclSuccess;
    open_group.calls.clear();
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  OpenGroup& group = open_group;
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  if (const ncclResult_t fault = TakeFault("ncclGroupEnd"); fault != ncclSuccess) return fault;
  if (group.error != ncclSuccess) return group.error;
  if (group.calls.empty()) return ncclSuccess;
  const InUse use(*group.comm);
  Begin(*group.comm, Polls(), [comm = group.comm, stream = group.stream, calls = std::move(group.calls)] {
    return Launch(*comm, stream, calls);
  });
  return ncclInProgress;
}

// ---- collectives ----

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return Add("ncclAllGather", comm, stream,
             {.kind = NcclKind::kAllGather, .in = in, .out = out, .bytes = Bytes(count, type)});
}

ncclResult_t ncclAlltoAll(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return Add("ncclAlltoAll", comm, stream,
             {.kind = NcclKind::kAllToAll, .in = in, .out = out, .bytes = Bytes(count, type)});
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return Add("ncclAllReduce", comm, stream,
             {.kind = NcclKind::kAllReduce,
              .in = in,
              .out = out,
              .bytes = Bytes(count, type),
              .op = op,
              .type = type});
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return Add("ncclBroadcast", comm, stream,
             {.kind = NcclKind::kBroadcast, .in = in, .out = out, .bytes = Bytes(count, type), .peer = root});
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Add("ncclSend", comm, stream,
             {.kind = NcclKind::kSend, .in = in, .bytes = Bytes(count, type), .peer = peer});
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Add("ncclRecv", comm, stream,
             {.kind = NcclKind::kRecv, .out = out, .bytes = Bytes(count, type), .peer = peer});
}
