#pragma once

// The captured decode steps, one per (bucket, K, rows, sampling mode). Filled at start; nothing is
// captured afterwards. Owner: RankEngine.

#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "engine/spec/sampling_mode.h"
#include "kernels/device.h"

namespace foredraft {

// Identifies a captured decode step: the shape of its forwards, and how their logits become tokens.
struct StepKey {
  int bucket = 0;
  int draft_len = 0;    // K
  int verify_rows = 0;  // rows of the target's forward; 0: one for every draft, bucket * (K + 1)
  SamplingMode sampling_mode = SamplingMode::kSample;

  bool cuts() const { return verify_rows > 0; }
  int rows() const { return cuts() ? verify_rows : bucket * (draft_len + 1); }
  bool operator==(const StepKey&) const = default;
  template <class H>
  friend H AbslHashValue(H hash, const StepKey& key) {
    return H::combine(std::move(hash), key.bucket, key.draft_len, key.verify_rows, key.sampling_mode);
  }
};

class GraphCache {
 public:
  void Insert(const StepKey& key, std::unique_ptr<Graph> graph) { graphs_[key] = std::move(graph); }
  // Null where this step was not captured.
  const Graph* Find(const StepKey& key) const {
    const auto found = graphs_.find(key);
    return found == graphs_.end() ? nullptr : found->second.get();
  }
  size_t size() const { return graphs_.size(); }

 private:
  absl::flat_hash_map<StepKey, std::unique_ptr<Graph>> graphs_;
};

}  // namespace foredraft
