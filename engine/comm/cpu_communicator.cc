#include "engine/comm/cpu_communicator.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/comm/gloo_mesh.h"
#include "engine/comm/shm_mesh.h"
#include "kernels/cpu/device/cpu_stream.h"

namespace foredraft {
namespace {

constexpr const char* kOperationNames[] = {"all_gather", "all_to_all", "all_reduce", "broadcast", "barrier"};

// A collective as a node of a graph: trivially copyable.
template <class Params>
struct CollectiveNode {
  CpuCommunicator* comm;
  void (*run)(CpuCommunicator* comm, const Params& params);
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

template <class Params>
int64_t LargestRows(const Params& params) {
  return params.largest_rows > 0 ? params.largest_rows : params.rows.largest();
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

absl::StatusOr<std::unique_ptr<Communicator>> CpuCommunicator::Create(const CommunicatorOptions& options,
                                                                      RendezvousStore& store) {
  std::signal(SIGPIPE, SIG_IGN);
  ASSIGN_OR_RETURN(std::unique_ptr<ExchangeMesh> mesh, GlooMesh::Connect(options, store));
  std::unique_ptr<ExchangeMesh> step_mesh;
  if (options.shared_memory) {
    ASSIGN_OR_RETURN(step_mesh, ShmMesh::Connect(options, store));
  }
  return std::unique_ptr<Communicator>(new CpuCommunicator(options, std::move(mesh), std::move(step_mesh)));
}

CpuCommunicator::CpuCommunicator(const CommunicatorOptions& options, std::unique_ptr<ExchangeMesh> mesh,
                                 std::unique_ptr<ExchangeMesh> step_mesh)
    : rank_(options.rank),
      size_(options.size),
      step_timeout_(options.step_timeout),
      mesh_(std::move(mesh)),
      step_mesh_(std::move(step_mesh)) {}

CpuCommunicator::~CpuCommunicator() = default;

void CpuCommunicator::AllGather(Stream& stream, const AllGatherParams& params) {
  SubmitCollective<AllGatherParams>(
      stream, {this, [](CpuCommunicator* comm, const AllGatherParams& p) { comm->GatherNow(p); }, params});
}

void CpuCommunicator::AllToAll(Stream& stream, const AllToAllParams& params) {
  SubmitCollective<AllToAllParams>(
      stream, {this, [](CpuCommunicator* comm, const AllToAllParams& p) { comm->ToAllNow(p); }, params});
}

absl::Status CpuCommunicator::Await(Stream& stream) {
  stream.Synchronize();
  return status();
}

void CpuCommunicator::GatherNow(const AllGatherParams& params) {
  const int64_t part_count = std::count_if(params.parts.begin(), params.parts.end(),
                                           [](const GatherPart& part) { return part.row_bytes > 0; });
  if (part_count == 1) {
    GatherOnePart(params, params.parts[0]);
  } else {
    GatherPacked(params);
  }
}

void CpuCommunicator::GatherOnePart(const AllGatherParams& params, const GatherPart& part) {
  auto* const out = static_cast<std::byte*>(part.out);
  Exchange exchange;
  for (int rank = 0; rank < size_; ++rank) {
    if (!params.set.has(rank)) continue;
    exchange.outgoing[rank] = {const_cast<void*>(part.in), params.rows[rank_] * part.row_bytes};
    exchange.incoming[rank] = {out + params.rows.offset(rank) * part.row_bytes,
                               params.rows[rank] * part.row_bytes};
  }
  exchange.largest_bytes = LargestRows(params) * part.row_bytes;
  exchange.same_to_all = params.set.count >= size_;
  Run(step_mesh(), Operation::kAllGather, exchange);
  CopyUnlessInPlace(exchange.incoming[rank_].data, part.in, exchange.incoming[rank_].bytes);
}

// Sends the parts in one message per rank: a message costs more than copying its few rows.
void CpuCommunicator::GatherPacked(const AllGatherParams& params) {
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
  Exchange exchange;
  for (int rank = 0; rank < size_; ++rank) {
    if (!params.set.has(rank)) continue;
    exchange.outgoing[rank] = {packed_out_.data(), static_cast<int64_t>(packed_out_.size())};
    exchange.incoming[rank] = {packed_in_.data() + params.rows.offset(rank) * row_bytes,
                               params.rows[rank] * row_bytes};
  }
  exchange.largest_bytes = LargestRows(params) * row_bytes;
  exchange.same_to_all = params.set.count >= size_;
  Run(step_mesh(), Operation::kAllGather, exchange);
  if (status_.failed()) return;
  for (int rank = 0; rank < size_; ++rank) {
    const auto* from = static_cast<const std::byte*>(exchange.incoming[rank].data);
    for (const GatherPart& part : params.parts) {
      const int64_t bytes = params.rows[rank] * part.row_bytes;
      void* const to = static_cast<std::byte*>(part.out) + params.rows.offset(rank) * part.row_bytes;
      CopyUnlessInPlace(to, rank == rank_ ? part.in : from, bytes);
      from += bytes;
    }
  }
}

void CpuCommunicator::ToAllNow(const AllToAllParams& params) {
  const int64_t own_bytes = params.rows[rank_] * params.row_bytes;
  auto* const in = static_cast<std::byte*>(const_cast<void*>(params.in));
  auto* const out = static_cast<std::byte*>(params.out);
  Exchange exchange;
  for (int rank = 0; rank < size_; ++rank) {
    if (!params.set.has(rank)) continue;
    exchange.outgoing[rank] = {in + params.rows.offset(rank) * params.row_bytes,
                               params.rows[rank] * params.row_bytes};
    exchange.incoming[rank] = {out + params.set.index(rank) * own_bytes, own_bytes};
  }
  exchange.largest_bytes = LargestRows(params) * params.row_bytes;
  Run(step_mesh(), Operation::kAllToAll, exchange);
  CopyUnlessInPlace(exchange.incoming[rank_].data, exchange.outgoing[rank_].data, own_bytes);
}

absl::Status CpuCommunicator::AllReduce(std::span<int64_t> values, Reduction reduction) {
  reduce_buffer_.resize(values.size() * size_);
  Exchange exchange;
  for (int rank = 0; rank < size_; ++rank) {
    exchange.outgoing[rank] = {values.data(), static_cast<int64_t>(values.size_bytes())};
    exchange.incoming[rank] = {&reduce_buffer_[rank * values.size()],
                               static_cast<int64_t>(values.size_bytes())};
  }
  Run(*mesh_, Operation::kAllReduce, exchange);
  if (status_.failed()) return status();
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    Reduce(values, std::span(&reduce_buffer_[rank * values.size()], values.size()), reduction);
  }
  return absl::OkStatus();
}

absl::Status CpuCommunicator::Broadcast(std::span<std::byte> bytes, int root) {
  const ExchangeBlock block = {bytes.data(), static_cast<int64_t>(bytes.size())};
  Exchange exchange;
  if (rank_ == root) exchange.outgoing.fill(block);
  exchange.incoming[root] = block;
  Run(*mesh_, Operation::kBroadcast, exchange);
  return status();
}

absl::Status CpuCommunicator::Barrier() {
  Run(*mesh_, Operation::kBarrier, {});
  return status();
}

void CpuCommunicator::Run(ExchangeMesh& mesh, Operation operation, Exchange exchange) {
  if (status_.failed()) return;
  exchange.operation = static_cast<uint32_t>(operation);
  const absl::Status ran = mesh.Run(exchange);
  if (ran.ok()) return;
  const char* const name = kOperationNames[static_cast<int>(operation)];
  const int peer = mesh.waiting_for();
  if (absl::IsDeadlineExceeded(ran)) {
    status_.Fail(absl::UnavailableError(absl::StrFormat("rank %d: %s: nothing from rank %d within %d ms",
                                                        rank_, name, peer, step_timeout_.count())));
  } else {
    status_.Fail(absl::UnavailableError(
        absl::StrFormat("rank %d: %s with rank %d: %s", rank_, name, peer, ran.message())));
  }
  Close();
}

void CpuCommunicator::Close() {
  mesh_->Close();
  if (step_mesh_ != nullptr) step_mesh_->Close();
}

void CpuCommunicator::Abort(const absl::Status& reason) {
  if (status_.Fail(reason)) Close();
}

}  // namespace foredraft
