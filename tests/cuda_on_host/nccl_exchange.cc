#include "tests/cuda_on_host/nccl_exchange.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cuda_on_host/device_thread.h"

namespace cuda_on_host {
namespace {

const char* NameOf(NcclKind kind) {
  static constexpr const char* kNames[] = {"all_gather", "all_to_all", "all_reduce",
                                           "broadcast",  "send",       "recv"};
  return kNames[static_cast<int>(kind)];
}

bool IsMessage(const NcclCall& call) { return call.kind == NcclKind::kSend || call.kind == NcclKind::kRecv; }

std::string Describe(const std::vector<NcclCall>& calls) {
  std::string text;
  for (const NcclCall& call : calls) {
    text += std::string(text.empty() ? "" : ", ") + NameOf(call.kind) + " of " + std::to_string(call.bytes);
    if (IsMessage(call)) text += " with " + std::to_string(call.peer);
  }
  return text;
}
std::string Describe(const NcclGroup& group) {
  const std::string text = Describe(group.calls);
  return group.graph == 0 ? text : text + " in graph " + std::to_string(group.graph);
}

[[noreturn]] void Fault(const std::string& what) { KernelFault({"NCCL", 0}, what); }

// Bytes of a call's two buffers.
size_t InBytes(const NcclCall& call, size_t ranks) {
  if (call.kind == NcclKind::kRecv) return 0;
  return call.kind == NcclKind::kAllToAll ? call.bytes * ranks : call.bytes;
}
size_t OutBytes(const NcclCall& call, size_t ranks) {
  if (call.kind == NcclKind::kSend) return 0;
  const bool all = call.kind == NcclKind::kAllGather || call.kind == NcclKind::kAllToAll;
  return all ? call.bytes * ranks : call.bytes;
}

std::byte* At(void* memory, size_t offset) { return static_cast<std::byte*>(memory) + offset; }
const std::byte* At(const void* memory, size_t offset) {
  return static_cast<const std::byte*>(memory) + offset;
}

int64_t Reduced(int64_t a, int64_t b, ncclRedOp_t op) {
  return op == ncclSum ? a + b : op == ncclMin ? std::min(a, b) : std::max(a, b);
}

}  // namespace

void NcclClique::Join(int rank, int device) {
  if (rank < 0 || rank >= size()) Fault("rank " + std::to_string(rank) + " of " + std::to_string(size()));
  if (members_[rank].device >= 0) Fault("rank " + std::to_string(rank) + " joins twice");
  members_[rank].device = device;
}

bool NcclClique::complete() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.device >= 0; });
}

std::string NcclClique::Duplicate() const {
  for (int a = 0; a < size(); ++a) {
    for (int b = a + 1; b < size(); ++b) {
      if (members_[a].device != members_[b].device) continue;
      return "rank " + std::to_string(a) + " and rank " + std::to_string(b) + " both on CUDA device " +
             std::to_string(members_[a].device);
    }
  }
  return "";
}

bool NcclClique::Continue(int rank, const NcclGroup& group, const DeviceMemory& memory) {
  Member& own = members_[rank];
  if (own.running == nullptr) {
    own.running = &group;
    own.moved = false;
    const std::vector<int> ranks = Together(rank);
    if (!ranks.empty()) Move(ranks, memory);
    for (const int other : ranks) members_[other].moved = true;
  } else if (own.running != &group) {
    return false;  // on another stream: a communicator's groups run one after another
  }
  if (!own.moved && !own.stopped) return false;
  if (!own.moved) {
    for (const NcclCall& call : group.calls) {
      if (call.out != nullptr) std::memset(call.out, 0xff, OutBytes(call, members_.size()));
    }
  }
  own.running = nullptr;
  return true;
}

std::vector<int> NcclClique::Together(int rank) const {
  std::vector<int> ranks = {rank};
  const auto add = [&ranks](int other) {
    if (std::find(ranks.begin(), ranks.end(), other) == ranks.end()) ranks.push_back(other);
  };
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Member& member = members_[ranks[i]];
    if (member.running == nullptr || member.moved || member.stopped) return {};
    for (const NcclCall& call : member.running->calls) {
      if (IsMessage(call)) add(call.peer);
      for (int other = 0; !IsMessage(call) && other < size(); ++other) add(other);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void NcclClique::Move(const std::vector<int>& ranks, const DeviceMemory& memory) const {
  for (const int rank : ranks) {
    for (const NcclCall& call : members_[rank].running->calls) {
      const size_t in = InBytes(call, members_.size());
      const size_t out = OutBytes(call, members_.size());
      if ((in > 0 && !memory.Holds(call.in, in)) || (out > 0 && !memory.Holds(call.out, out))) {
        Fault(Describe(std::vector{call}) + " bytes: a buffer is not within one allocation of device memory");
      }
    }
  }
  CheckMatch(ranks);
  const std::vector<NcclCall>& first = members_[ranks.front()].running->calls;
  if (IsMessage(first.front())) return MoveMessages(ranks);
  for (size_t index = 0; index < first.size(); ++index) MoveCollective(index);
}

// Messages are matched by MoveMessages. All other groups are the same on all ranks.
void NcclClique::CheckMatch(const std::vector<int>& ranks) const {
  const NcclGroup& first = *members_[ranks.front()].running;
  for (const int rank : ranks) {
    const NcclGroup& group = *members_[rank].running;
    const std::vector<NcclCall>&a = group.calls, &b = first.calls;
    bool same = a.size() == b.size();
    for (size_t i = 0; same && i < a.size(); ++i) {
      same = a[i].kind == b[i].kind && a[i].bytes == b[i].bytes && a[i].op == b[i].op &&
             a[i].peer == b[i].peer && !IsMessage(a[i]);
    }
    const bool messages = std::all_of(a.begin(), a.end(), IsMessage) && IsMessage(b.front());
    if ((!same && !messages) || group.graph != first.graph) {
      Fault("rank " + std::to_string(ranks.front()) + " has " + Describe(first) + "; rank " +
            std::to_string(rank) + " has " + Describe(group));
    }
  }
}

void NcclClique::MoveCollective(size_t index) const {
  const size_t bytes = members_[0].running->calls[index].bytes;
  const auto call = [&](int rank) -> const NcclCall& { return members_[rank].running->calls[index]; };
  const NcclKind kind = call(0).kind;
  if (kind == NcclKind::kAllReduce) {
    if (call(0).type != ncclInt64) Fault("all_reduce of a type that is not emulated");
    std::vector<int64_t> sum(bytes / sizeof(int64_t));
    std::memcpy(sum.data(), call(0).in, bytes);
    for (int rank = 1; rank < size(); ++rank) {
      const auto* values = static_cast<const int64_t*>(call(rank).in);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = Reduced(sum[i], values[i], call(0).op);
    }
    for (int rank = 0; rank < size(); ++rank) std::memcpy(call(rank).out, sum.data(), bytes);
    return;
  }
  for (int to = 0; to < size(); ++to) {
    if (kind == NcclKind::kBroadcast) {
      std::memmove(call(to).out, call(call(0).peer).in, bytes);
      continue;
    }
    for (int from = 0; from < size(); ++from) {
      const size_t offset = kind == NcclKind::kAllToAll ? to * bytes : 0;
      std::memmove(At(call(to).out, from * bytes), At(call(from).in, offset), bytes);
    }
  }
}

// The n-th send of one rank to another is for the n-th receive there.
void NcclClique::MoveMessages(const std::vector<int>& ranks) const {
  const auto of_pair = [this](int rank, NcclKind kind, int peer) {
    const std::vector<NcclCall>& all = members_[rank].running->calls;
    std::vector<NcclCall> calls;
    std::copy_if(all.begin(), all.end(), std::back_inserter(calls),
                 [&](const NcclCall& call) { return call.kind == kind && call.peer == peer; });
    return calls;
  };
  for (const int from : ranks) {
    for (const int to : ranks) {
      const std::vector<NcclCall> sent = of_pair(from, NcclKind::kSend, to);
      const std::vector<NcclCall> wanted = of_pair(to, NcclKind::kRecv, from);
      const bool match = std::equal(sent.begin(), sent.end(), wanted.begin(), wanted.end(),
                                    [](const NcclCall& a, const NcclCall& b) { return a.bytes == b.bytes; });
      if (!match) {
        Fault("rank " + std::to_string(from) + " has " + Describe(sent) + "; rank " + std::to_string(to) +
              " has " + Describe(wanted));
      }
      for (size_t i = 0; i < sent.size(); ++i) std::memmove(wanted[i].out, sent[i].in, sent[i].bytes);
    }
  }
}

}  // namespace cuda_on_host
