#include "kernels/cuda/device/cuda_graph.h"

#include <algorithm>

#include "base/check.h"

namespace foredraft {
namespace {

bool SameShape(const dim3& a, const dim3& b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

bool SameNode(const CudaNode& a, const CudaNode& b) {
  return a.kernel == b.kernel && SameShape(a.grid, b.grid) && SameShape(a.block, b.block) &&
         a.shared_bytes == b.shared_bytes && a.params == b.params;
}

}  // namespace

CudaGraph::CudaGraph(CudaStream& stream) {
  cudaGraph_t graph = stream.EndCapture(nodes_);
  CheckCuda(cudaGraphInstantiate(&executable_, graph, 0), "instantiate a graph");
  CheckCuda(cudaGraphDestroy(graph), "destroy a graph");  // the executable graph has its own copy
  // Without this, the first launch would upload it.
  CheckCuda(cudaGraphUpload(executable_, stream.handle()), "upload a graph");
}

CudaGraph::~CudaGraph() { CheckCuda(cudaGraphExecDestroy(executable_), "destroy a graph"); }

void CudaGraph::Replay(Stream& stream) const {
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  CHECK(!cuda_stream.capturing()) << "replay inside a capture";
  CheckCuda(cudaGraphLaunch(executable_, cuda_stream.handle()), "launch a graph");
}

bool CudaGraph::SameNodes(const Graph& other) const {
  const auto* graph = dynamic_cast<const CudaGraph*>(&other);
  return graph != nullptr &&
         std::equal(nodes_.begin(), nodes_.end(), graph->nodes_.begin(), graph->nodes_.end(), SameNode);
}

}  // namespace foredraft
