#include "kernels/cpu/device/cpu_stream.h"

#include <utility>

namespace foredraft {

void CpuGraph::Append(CpuNodeFn fn, const void* params, size_t bytes) {
  nodes_.push_back({fn, params_.size(), bytes});
  const auto* first = static_cast<const std::byte*>(params);
  params_.insert(params_.end(), first, first + bytes);
}

void CpuGraph::Replay(Stream& stream) const {
  auto& cpu_stream = static_cast<CpuStream&>(stream);
  CHECK(!cpu_stream.capturing()) << "replay inside a capture";
  for (const Node& node : nodes_) node.fn(cpu_stream.context(), params_.data() + node.offset);
}

bool CpuGraph::SameNodes(const Graph& other) const {
  const auto* graph = dynamic_cast<const CpuGraph*>(&other);
  if (graph == nullptr || graph->nodes_.size() != nodes_.size() || graph->params_ != params_) return false;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].fn != graph->nodes_[i].fn || nodes_[i].bytes != graph->nodes_[i].bytes) return false;
  }
  return true;
}

void CpuStream::BeginCapture() {
  CHECK(!capturing()) << "capture inside a capture";
  graph_ = std::make_unique<CpuGraph>();
}

std::unique_ptr<CpuGraph> CpuStream::EndCapture() {
  CHECK(capturing());
  return std::move(graph_);
}

}  // namespace foredraft
