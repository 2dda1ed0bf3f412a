#ifndef FOREDRAFT_CLIENT_LOAD_WORKLOAD_H_
#define FOREDRAFT_CLIENT_LOAD_WORKLOAD_H_

// What the requests of a benchmark ask for: from a file, or random. Immutable, any thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "foredraft/v1/generation.pb.h"

namespace foredraft {

struct WorkItem {
  std::string name;  // "request 17", "task 3 (data.jsonl:4)": for lines about it
  std::vector<int32_t> token_ids;
  std::string text;  // where token_ids is empty
  int32_t output_tokens = 0;
};

class Workload {
 public:
  virtual ~Workload() = default;
  // A pure function of the index, which is any: a file begins again at its end.
  virtual WorkItem Item(int64_t index) const = 0;
  virtual std::string Description() const = 0;
};

// trtllm-bench's JSON lines: {"task_id": 0, "input_ids": [5, 6] or "prompt": "...", "output_tokens": 128};
// other fields are ignored, task_id may be missing. The error names file, line and field. Token ids are held
// against `model`'s vocabulary.
class DatasetWorkload : public Workload {
 public:
  static absl::StatusOr<std::unique_ptr<DatasetWorkload>> Read(const std::string& path,
                                                               const v1::GetModelResponse& model);

  WorkItem Item(int64_t index) const override { return items_[index % items_.size()]; }
  std::string Description() const override;
  int64_t size() const { return static_cast<int64_t>(items_.size()); }

 private:
  DatasetWorkload(std::string path, std::vector<WorkItem> items)
      : path_(std::move(path)), items_(std::move(items)) {}

  const std::string path_;
  const std::vector<WorkItem> items_;  // never empty
};

struct RandomWorkloadOptions {
  int input_len = 128;
  int output_len = 128;
  double range_ratio =
      0;  // [0, 1): lengths are uniform in len * (1 - ratio) .. len * (1 + ratio), at least 1
  uint64_t seed = 0;
};

// Random token ids below the model's vocabulary; its end, begin and thinking tokens are left out, for they
// would change what the server does with the rest.
class RandomWorkload : public Workload {
 public:
  // The error names the option that does not fit the model.
  static absl::StatusOr<std::unique_ptr<RandomWorkload>> Make(const RandomWorkloadOptions& options,
                                                              const v1::GetModelResponse& model);

  WorkItem Item(int64_t index) const override;
  std::string Description() const override;

 private:
  RandomWorkload(const RandomWorkloadOptions& options, std::vector<int32_t> ids)
      : options_(options), ids_(std::move(ids)) {}

  const RandomWorkloadOptions options_;
  const std::vector<int32_t> ids_;  // to draw from
};

// The shapes of another workload with other, random prompts: warms the server up and leaves nothing of the
// measured prompts in its prefix cache.
class WarmUpWorkload : public Workload {
 public:
  static absl::StatusOr<std::unique_ptr<WarmUpWorkload>> Make(const Workload& shapes,
                                                              const v1::GetModelResponse& model,
                                                              uint64_t seed);

  WorkItem Item(int64_t index) const override;
  std::string Description() const override { return "warm-up"; }

 private:
  WarmUpWorkload(const Workload& shapes, std::vector<int32_t> ids, uint64_t seed)
      : shapes_(shapes), ids_(std::move(ids)), seed_(seed) {}

  const Workload& shapes_;
  const std::vector<int32_t> ids_;  // to draw from
  const uint64_t seed_;
};

// The prompts of another workload, one token of output each: afterwards the server's prefix cache holds of
// them what it can, so that the runs of a comparison, the first included, find the same.
class PromptsOnlyWorkload : public Workload {
 public:
  explicit PromptsOnlyWorkload(const Workload& prompts) : prompts_(prompts) {}

  WorkItem Item(int64_t index) const override;
  std::string Description() const override { return "prompts"; }

 private:
  const Workload& prompts_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_CLIENT_LOAD_WORKLOAD_H_
