#pragma once

// A captured step, instantiated and uploaded, so a replay is one launch. Keeps the recorded nodes for
// SameNodes. The device must outlive it.

#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/device.h"

namespace foredraft {

class CudaGraph : public Graph {
 public:
  // Ends the capture of `stream`.
  explicit CudaGraph(CudaStream& stream);
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void Replay(Stream& stream) const override;
  size_t node_count() const override { return nodes_.size(); }
  bool SameNodes(const Graph& other) const override;

 private:
  std::vector<CudaNode> nodes_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace foredraft
