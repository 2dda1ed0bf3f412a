#pragma once

// What must be equal on the leader and all workers of a group: binary, model, the configuration keys that
// decide tokens and sizes, and the numerics class. Pure, except that ModelHash reads the checkpoint.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foredraft {

struct GroupIdentity {
  std::string version;
  std::string model_hash;
  std::vector<std::string> config_keys;  // "max_batch_size: 16", the same keys in the same order on all
  std::string numerics_class;            // empty on the leader, which has no device: any class matches
};

// 8 hex digits over config.json and, for every safetensors file, its name, its size and evenly spaced
// samples. It reads 64 KiB per file, whatever the size of the model, so it does not detect tampering.
// NOT_FOUND names the file.
absl::StatusOr<std::string> ModelHash(const std::string& checkpoint_dir);

// FAILED_PRECONDITION names the first difference and both values.
absl::Status CheckSameIdentity(const GroupIdentity& leader, const GroupIdentity& worker);

}  // namespace foredraft
