#pragma once

// The tensors of a Hugging Face checkpoint directory: model.safetensors, or the shards that
// model.safetensors.index.json names. Does not interpret the tensors.

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/safetensors.h"

namespace foredraft {

// Where a tensor is. Points into the Checkpoint.
struct TensorLocation {
  const SafetensorsFile* file = nullptr;
  const TensorEntry* entry = nullptr;
};

// A tensor of the model that is a part of a stored tensor: `begin` is its first byte there.
struct NamedPart {
  std::string name;
  std::vector<int64_t> shape;
  int64_t begin = 0;
};

// Read-only after Open and Rename; any thread.
class Checkpoint {
 public:
  // Opens and checks every file. `unlisted` (empty: none) names a file that is opened too if the directory
  // has it and the index does not list it. INVALID_ARGUMENT or NOT_FOUND names the file: no checkpoint, a
  // weight_map value that is not a plain file name, a missing shard, a tensor in a different shard than the
  // index says, a tensor in two files.
  static absl::StatusOr<Checkpoint> Open(const std::string& dir, const std::string& unlisted = "");

  // Gives every stored tensor one or more names, each for a part of it; the parts cover the tensor. Find then
  // takes these names. TensorEntry::name stays the file's name; where a tensor has several parts, the part's
  // name is added to it.
  // INVALID_ARGUMENT names both files' tensors where two parts get the same name.
  absl::Status Rename(const std::function<std::vector<NamedPart>(const TensorEntry&)>& parts_of);

  // {null, null} where there is no such tensor.
  TensorLocation Find(const std::string& name) const;
  // All tensors, ordered by file, then by offset.
  const std::vector<TensorLocation>& tensors() const { return tensors_; }
  // The index file, or the single model.safetensors; errors about a missing tensor name it.
  const std::string& main_file() const { return main_file_; }

 private:
  absl::Status OpenShards(const std::string& dir);
  absl::Status IndexTensors();
  absl::Status Add(const std::string& name, const TensorLocation& tensor);

  std::string main_file_;
  std::vector<SafetensorsFile> files_;  // constant after Open: locations point into it
  std::deque<TensorEntry> parts_;       // made by Rename: locations point into it
  std::vector<TensorLocation> tensors_;
  absl::flat_hash_map<std::string, size_t> index_;
};

// Parses and checks the index file: tensor name to shard file name. `file` names it in errors.
absl::StatusOr<absl::flat_hash_map<std::string, std::string>> ParseShardIndex(std::string_view json,
                                                                              const std::string& file);

}  // namespace foredraft
