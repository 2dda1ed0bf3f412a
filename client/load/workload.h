#pragma once

// Prompts and output lengths of a benchmark's requests: from a file or random. Immutable; any thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "foredraft/v1/generation.pb.h"

namespace foredraft {

// What is sent: token_ids, else the turns, else the text.
struct WorkItem {
  std::string name;  // in messages: "request 17", "task 3 (data.jsonl:4)"
  std::vector<int32_t> token_ids;
  std::string text;
  std::vector<std::string> turns;  // a user's messages of one chat, each sent after the answer before it
  std::string category;            // reports have a row for each; "" = none
  int32_t output_tokens = 0;       // at most, of each answer
};

class Workload {
 public:
  virtual ~Workload() = default;
  // A pure function of the index. Any index is valid: a file starts over at its end.
  virtual WorkItem Item(int64_t index) const = 0;
  virtual std::string Description() const = 0;
};

// trtllm-bench's JSON lines: {"task_id": 0, "input_ids": [5, 6] or "prompt": "...", "output_tokens": 128};
// other fields are ignored, task_id may be missing. Token ids must be in `model`'s vocabulary. The error
// names file, line and field.
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

struct SpeedBenchOptions {
  std::string path;
  std::vector<std::string> categories;  // the rows to send; empty = all
  int max_tokens = 4096;                // of each answer, as InferenceX measures acceptance lengths
};

// Prompts of SPEED-Bench, JSON lines as the dataset has them or as NVIDIA's scripts prepare them:
// {"question_id": "a", "category": "coding", "turns": ["first", "second"]}, or in place of turns
// "messages": [{"role": "user", "content": "first"}]; question_id and category may be missing, other fields
// are ignored.
class SpeedBenchWorkload : public Workload {
 public:
  // The error names file, line and field; or the option, if it asks for a category that no row has.
  static absl::StatusOr<std::unique_ptr<SpeedBenchWorkload>> Read(const SpeedBenchOptions& options);

  WorkItem Item(int64_t index) const override { return items_[index % items_.size()]; }
  std::string Description() const override;
  // Rows: a chat of several turns is one.
  int64_t size() const { return static_cast<int64_t>(items_.size()); }

 private:
  SpeedBenchWorkload(std::string path, std::vector<WorkItem> items)
      : path_(std::move(path)), items_(std::move(items)) {}

  const std::string path_;
  const std::vector<WorkItem> items_;  // never empty
};

struct RandomWorkloadOptions {
  int input_len = 128;
  int output_len = 128;
  // [0, 1): lengths are uniform in len * (1 - ratio) .. len * (1 + ratio), at least 1.
  double range_ratio = 0;
  uint64_t seed = 0;
};

// Random token ids of the model's vocabulary, without BOS, EOS and thinking tokens, which would change how
// the daemon treats the rest.
class RandomWorkload : public Workload {
 public:
  // The error names the option that the model does not allow.
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

// Random prompts with the lengths of another workload: they warm up the daemon without putting the measured
// prompts into its prefix cache.
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

// The prompts of another workload with one token of output each. Sent before a comparison, they fill the
// prefix cache, so that its first run finds the same cache as the later ones. Chats of several turns keep
// their whole answers, because the prompts of the next turns contain them.
class PromptsOnlyWorkload : public Workload {
 public:
  explicit PromptsOnlyWorkload(const Workload& prompts) : prompts_(prompts) {}

  WorkItem Item(int64_t index) const override;
  std::string Description() const override { return "prompts"; }

 private:
  const Workload& prompts_;
};

}  // namespace foredraft
