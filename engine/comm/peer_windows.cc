#include "engine/comm/peer_windows.h"

#include <cuda_runtime.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

static_assert(kPushRanks == kMaxRanks);
static_assert(kPushParts == kMaxGatherParts);

using ProcessId = std::array<uint64_t, 2>;

// A random id, because processes of different containers may have equal PIDs.
const ProcessId& ThisProcess() {
  static const ProcessId id = [] {
    ProcessId random;
    CHECK_EQ(getrandom(random.data(), sizeof(random), 0), static_cast<ssize_t>(sizeof(random)));
    return random;
  }();
  return id;
}

using HostId = std::array<char, 40>;

// The kernel's boot id, which all containers of a host share.
HostId ThisHost() {
  HostId id = {};
  std::ifstream("/proc/sys/kernel/random/boot_id").read(id.data(), id.size() - 1);
  return id;
}

// What a rank tells the others about its window.
struct WindowOffer {
  HostId host = ThisHost();
  ProcessId process = ThisProcess();
  PushWindow* address = nullptr;  // in that process
  cudaIpcMemHandle_t handle = {};
};

std::string OfferKey(int rank) { return absl::StrCat("window/", rank); }
std::string AnswerKey(int rank) { return absl::StrCat("window/answer/", rank); }

// Describes `error`, and clears CUDA's last error.
std::string Reason(const char* what, cudaError_t error) {
  cudaGetLastError();
  return absl::StrCat(what, ": ", cudaGetErrorString(error));
}

int64_t BytesOf(const AllGatherParams& params) {
  return PushedBytes(params.parts, std::max(params.largest_rows, params.rows.largest()));
}

int64_t BytesOf(const AllToAllParams& params) {
  return PushedBytes(std::array{PushPart{.row_bytes = params.row_bytes}},
                     std::max(params.largest_rows, params.rows.largest()));
}

PushPart PartOf(const void* in, void* out, int64_t row_bytes) {
  return {static_cast<const std::byte*>(in), static_cast<std::byte*>(out), row_bytes};
}

}  // namespace

std::string PeerWindows::Offer(std::string& failure) {
  PushWindow*& own = windows_.of[windows_.rank];
  if (const cudaError_t error = cudaMalloc(&own, sizeof(PushWindow)); error != cudaSuccess) {
    own = nullptr;
    failure = Reason("cudaMalloc of its window", error);
    return "";
  }
  void* over = nullptr;
  cudaError_t error = cudaMallocHost(&over, sizeof(*over_));
  if (error == cudaSuccess) {
    over_ = new (over) std::atomic<uint32_t>(0);
    windows_.over = reinterpret_cast<const uint32_t*>(over_);
    error = cudaMemset(own, 0, offsetof(PushWindow, slots));
  }
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  WindowOffer offer = {.address = own};
  if (error == cudaSuccess) error = cudaIpcGetMemHandle(&offer.handle, own);
  if (error != cudaSuccess) {
    failure = Reason("preparing its window", error);
    return "";
  }
  return std::string(reinterpret_cast<const char*>(&offer), sizeof(offer));
}

std::string PeerWindows::Open(int peer, const std::string& bytes) {
  WindowOffer offer;
  if (bytes.size() != sizeof(offer)) return absl::StrCat("rank ", peer, " has none");
  std::memcpy(&offer, bytes.data(), sizeof(offer));
  if (offer.host != ThisHost()) return absl::StrCat("rank ", peer, " is on another host");
  if (offer.process == ThisProcess()) {
    windows_.of[peer] = offer.address;
    return "";
  }
  void* opened = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&opened, offer.handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) return Reason(absl::StrCat("opening rank ", peer, "'s window").c_str(), error);
  windows_.of[peer] = static_cast<PushWindow*>(opened);
  by_handle_[peer] = true;
  return "";
}

absl::StatusOr<std::unique_ptr<PeerWindows>> PeerWindows::Connect(
    int rank, int ranks, RendezvousStore& store, std::chrono::steady_clock::time_point deadline) {
  std::unique_ptr<PeerWindows> windows(new PeerWindows);
  windows->windows_.rank = rank;
  windows->windows_.ranks = ranks;
  std::string failure;
  RETURN_IF_ERROR(store.Set(OfferKey(rank), windows->Offer(failure)));
  for (int peer = 0; peer < ranks; ++peer) {
    ASSIGN_OR_RETURN(const std::string offer, store.Get(OfferKey(peer), deadline));
    if (peer != rank && failure.empty()) failure = windows->Open(peer, offer);
  }
  // Either all ranks use windows or none does: a rank without them would never store its flags.
  RETURN_IF_ERROR(store.Set(AnswerKey(rank), failure));
  bool all = true;
  for (int peer = 0; peer < ranks; ++peer) {
    ASSIGN_OR_RETURN(const std::string answer, store.Get(AnswerKey(peer), deadline));
    if (answer.empty()) continue;
    if (rank == 0) {
      Log(LogLevel::kInfo, "exchanges of few rows go through NCCL: rank %d: %s", peer, answer);
    }
    all = false;
  }
  if (!all) return nullptr;
  return windows;
}

// No peer writes any more after an orderly end: the flags of the last exchange were awaited.
PeerWindows::~PeerWindows() {
  for (int peer = 0; peer < windows_.ranks; ++peer) {
    if (by_handle_[peer]) cudaIpcCloseMemHandle(windows_.of[peer]);
  }
  cudaFree(windows_.of[windows_.rank]);
  cudaFreeHost(over_);
}

bool PeerWindows::Fits(const AllGatherParams& params) const { return BytesOf(params) <= kPushSlotBytes; }
bool PeerWindows::Fits(const AllToAllParams& params) const { return BytesOf(params) <= kPushSlotBytes; }

void PeerWindows::AllGather(Stream& stream, const AllGatherParams& params) const {
  PushExchangeParams push = {.windows = windows_, .largest_bytes = BytesOf(params)};
  for (int i = 0; i < kPushParts; ++i) {
    const GatherPart& part = params.parts[i];
    push.parts[i] = PartOf(part.in, part.out, part.row_bytes);
  }
  for (int peer = 0; peer < windows_.ranks; ++peer) {
    if (!params.set.has(peer)) continue;
    push.sent[peer] = {0, params.rows[windows_.rank]};
    push.received[peer] = {params.rows.offset(peer), params.rows[peer]};
  }
  PushExchange(stream, push);
}

void PeerWindows::AllToAll(Stream& stream, const AllToAllParams& params) const {
  PushExchangeParams push = {.windows = windows_, .largest_bytes = BytesOf(params)};
  push.parts[0] = PartOf(params.in, params.out, params.row_bytes);
  const int32_t own_rows = params.rows[windows_.rank];
  for (int peer = 0; peer < windows_.ranks; ++peer) {
    if (!params.set.has(peer)) continue;
    push.sent[peer] = {params.rows.offset(peer), params.rows[peer]};
    push.received[peer] = {params.set.index(peer) * own_rows, own_rows};
  }
  PushExchange(stream, push);
}

}  // namespace foredraft
