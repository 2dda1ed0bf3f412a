#include "engine/comm/gloo_communicator.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/cpu/device/cpu_stream.h"

namespace foredraft {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kOperationNames[] = {"all_gather", "all_to_all", "all_reduce", "broadcast", "barrier"};

// A collective as a node of a graph: trivially copyable.
template <class Params>
struct CollectiveNode {
  GlooCommunicator* comm;
  void (*run)(GlooCommunicator* comm, const Params& params);
  Params params;
};

template <class Params>
void RunCollective(const CpuContext&, const CollectiveNode<Params>& node) {
  node.run(node.comm, node.params);
}

template <class Params>
void SubmitCollective(Stream& stream, const CollectiveNode<Params>& node) {
  Submit<CollectiveNode<Params>, RunCollective<Params>>(stream, node);
}

void CopyUnlessInPlace(void* out, const void* in, int64_t bytes) {
  if (out != in && bytes > 0) std::memcpy(out, in, static_cast<size_t>(bytes));
}

void Reduce(std::span<int64_t> values, std::span<const int64_t> other, Reduction reduction) {
  for (size_t i = 0; i < values.size(); ++i) {
    switch (reduction) {
      case Reduction::kSum:
        values[i] += other[i];
        break;
      case Reduction::kMin:
        values[i] = std::min(values[i], other[i]);
        break;
      case Reduction::kMax:
        values[i] = std::max(values[i], other[i]);
        break;
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> GlooCommunicator::Create(const CommunicatorOptions& options,
                                                                       RendezvousStore& store) {
  std::signal(SIGPIPE, SIG_IGN);
  ASSIGN_OR_RETURN(std::unique_ptr<GlooMesh> mesh, GlooMesh::Connect(options, store));
  return std::unique_ptr<Communicator>(new GlooCommunicator(options, std::move(mesh)));
}

GlooCommunicator::GlooCommunicator(const CommunicatorOptions& options, std::unique_ptr<GlooMesh> mesh)
    : rank_(options.rank), size_(options.size), step_timeout_(options.step_timeout), mesh_(std::move(mesh)) {}

GlooCommunicator::~GlooCommunicator() = default;

void GlooCommunicator::AllGather(Stream& stream, const AllGatherParams& params) {
  SubmitCollective<AllGatherParams>(
      stream, {this, [](GlooCommunicator* comm, const AllGatherParams& p) { comm->GatherNow(p); }, params});
}

void GlooCommunicator::AllToAll(Stream& stream, const AllToAllParams& params) {
  SubmitCollective<AllToAllParams>(
      stream, {this, [](GlooCommunicator* comm, const AllToAllParams& p) { comm->ToAllNow(p); }, params});
}

absl::Status GlooCommunicator::Await(Stream& stream) {
  stream.Synchronize();
  return status();
}

void GlooCommunicator::GatherNow(const AllGatherParams& params) {
  const int64_t part_count = std::count_if(params.parts.begin(), params.parts.end(),
                                           [](const GatherPart& part) { return part.row_bytes > 0; });
  if (part_count == 1) {
    GatherOnePart(params, params.parts[0]);
  } else {
    GatherPacked(params);
  }
}

void GlooCommunicator::GatherOnePart(const AllGatherParams& params, const GatherPart& part) {
  auto* const out = static_cast<std::byte*>(part.out);
  Blocks outgoing;
  Blocks incoming;
  for (int rank = 0; rank < size_; ++rank) {
    outgoing[rank] = {const_cast<void*>(part.in), params.rows[rank_] * part.row_bytes};
    incoming[rank] = {out + params.rows.offset(rank) * part.row_bytes, params.rows[rank] * part.row_bytes};
  }
  Exchange(Operation::kAllGather, outgoing, incoming);
  CopyUnlessInPlace(incoming[rank_].data, part.in, incoming[rank_].bytes);
}

// Sends the parts in one message per rank: a message costs more than copying its few rows.
void GlooCommunicator::GatherPacked(const AllGatherParams& params) {
  int64_t row_bytes = 0;
  for (const GatherPart& part : params.parts) row_bytes += part.row_bytes;
  packed_out_.resize(static_cast<size_t>(params.rows[rank_] * row_bytes));
  packed_in_.resize(static_cast<size_t>(params.rows.total() * row_bytes));
  std::byte* next = packed_out_.data();
  for (const GatherPart& part : params.parts) {
    const int64_t bytes = params.rows[rank_] * part.row_bytes;
    CopyUnlessInPlace(next, part.in, bytes);
    next += bytes;
  }
  Blocks outgoing;
  Blocks incoming;
  for (int rank = 0; rank < size_; ++rank) {
    outgoing[rank] = {packed_out_.data(), static_cast<int64_t>(packed_out_.size())};
    incoming[rank] = {packed_in_.data() + params.rows.offset(rank) * row_bytes,
                      params.rows[rank] * row_bytes};
  }
  Exchange(Operation::kAllGather, outgoing, incoming);
  if (status_.failed()) return;
  for (int rank = 0; rank < size_; ++rank) {
    const auto* from = static_cast<const std::byte*>(incoming[rank].data);
    for (const GatherPart& part : params.parts) {
      const int64_t bytes = params.rows[rank] * part.row_bytes;
      void* const to = static_cast<std::byte*>(part.out) + params.rows.offset(rank) * part.row_bytes;
      CopyUnlessInPlace(to, rank == rank_ ? part.in : from, bytes);
      from += bytes;
    }
  }
}

void GlooCommunicator::ToAllNow(const AllToAllParams& params) {
  const int64_t own_bytes = params.rows[rank_] * params.row_bytes;
  auto* const in = static_cast<std::byte*>(const_cast<void*>(params.in));
  auto* const out = static_cast<std::byte*>(params.out);
  Blocks outgoing;
  Blocks incoming;
  for (int rank = 0; rank < size_; ++rank) {
    outgoing[rank] = {in + params.rows.offset(rank) * params.row_bytes, params.rows[rank] * params.row_bytes};
    incoming[rank] = {out + rank * own_bytes, own_bytes};
  }
  Exchange(Operation::kAllToAll, outgoing, incoming);
  CopyUnlessInPlace(incoming[rank_].data, outgoing[rank_].data, own_bytes);
}

absl::Status GlooCommunicator::AllReduce(std::span<int64_t> values, Reduction reduction) {
  reduce_buffer_.resize(values.size() * size_);
  Blocks outgoing;
  Blocks incoming;
  for (int rank = 0; rank < size_; ++rank) {
    outgoing[rank] = {values.data(), static_cast<int64_t>(values.size_bytes())};
    incoming[rank] = {&reduce_buffer_[rank * values.size()], static_cast<int64_t>(values.size_bytes())};
  }
  Exchange(Operation::kAllReduce, outgoing, incoming);
  if (status_.failed()) return status();
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    Reduce(values, std::span(&reduce_buffer_[rank * values.size()], values.size()), reduction);
  }
  return absl::OkStatus();
}

absl::Status GlooCommunicator::Broadcast(std::span<std::byte> bytes, int root) {
  const GlooMesh::Block block = {bytes.data(), static_cast<int64_t>(bytes.size())};
  Blocks outgoing;
  Blocks incoming;
  if (rank_ == root) outgoing.fill(block);
  incoming[root] = block;
  Exchange(Operation::kBroadcast, outgoing, incoming);
  return status();
}

absl::Status GlooCommunicator::Barrier() {
  Exchange(Operation::kBarrier, {}, {});
  return status();
}

void GlooCommunicator::Exchange(Operation operation, const Blocks& outgoing, const Blocks& incoming) {
  if (status_.failed()) return;
  const Clock::time_point deadline = Clock::now() + step_timeout_;
  const char* const name = kOperationNames[static_cast<int>(operation)];
  try {
    mesh_->Exchange(static_cast<uint32_t>(operation), outgoing, incoming);
    return;
  } catch (const std::exception& error) {
    const int peer = mesh_->waiting_for();
    if (Clock::now() >= deadline) {
      status_.Fail(absl::UnavailableError(absl::StrFormat("rank %d: %s: nothing from rank %d within %d ms",
                                                          rank_, name, peer, step_timeout_.count())));
    } else {
      status_.Fail(absl::UnavailableError(
          absl::StrFormat("rank %d: %s with rank %d: %s", rank_, name, peer, GlooMesh::ReasonOf(error))));
    }
  }
  mesh_->Close();
}

void GlooCommunicator::Abort(const absl::Status& reason) {
  if (status_.Fail(reason)) mesh_->Close();
}

}  // namespace foredraft
