#ifndef FOREDRAFT_ENGINE_REMOTE_IDENTITY_H_
#define FOREDRAFT_ENGINE_REMOTE_IDENTITY_H_

// What must be equal on leader and workers before they work together: binary, model, the configuration that
// decides tokens and sizes, and the class of numbers.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foredraft {

struct GroupIdentity {
  std::string version;
  std::string model_hash;
  std::vector<std::string> config_keys;  // "max_batch_size: 16", the same keys in the same order on all
  std::string numerics_class;            // empty = not known yet: the leader holds no device
};

// 8 hex digits, the same on every build and machine.
std::string ShortHash(std::string_view bytes);
std::string ConfigHash(const std::vector<std::string>& config_keys);

// config.json, and of every safetensors file its name, its size and samples that cover it evenly: a few
// megabytes are read, whatever the size of the model. Not a proof against tampering.
absl::StatusOr<std::string> ModelHash(const std::string& checkpoint_dir);

// FAILED_PRECONDITION that names what differs, both values, and where the two keys are to be found.
absl::Status CheckSameIdentity(const GroupIdentity& leader, const GroupIdentity& worker);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_REMOTE_IDENTITY_H_
