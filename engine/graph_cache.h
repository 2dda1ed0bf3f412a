#ifndef FOREDRAFT_ENGINE_GRAPH_CACHE_H_
#define FOREDRAFT_ENGINE_GRAPH_CACHE_H_

// The captured decode steps, one per (bucket, K). Filled at start; nothing is captured afterwards. Owner: the
// executor.

#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kernels/device.h"

namespace foredraft {

class GraphCache {
 public:
  using Key = std::pair<int, int>;  // bucket, K

  void Insert(Key key, std::unique_ptr<Graph> graph) { graphs_[key] = std::move(graph); }
  // Null where nothing was captured.
  const Graph* Find(Key key) const {
    const auto found = graphs_.find(key);
    return found == graphs_.end() ? nullptr : found->second.get();
  }
  size_t size() const { return graphs_.size(); }

 private:
  absl::flat_hash_map<Key, std::unique_ptr<Graph>> graphs_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_GRAPH_CACHE_H_
