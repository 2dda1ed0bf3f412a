#include "engine/checkpoint/checkpoint_names.h"

#include <utility>

#include "base/status_macros.h"
#include "engine/model/model_kinds.h"

namespace foredraft {

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& dir, const ModelConfig& config) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(dir, config.mtp_file));
  if (const auto rename = KindOf(config).rename; rename != nullptr) {
    RETURN_IF_ERROR(checkpoint.Rename([&](const TensorEntry& stored) { return rename(stored, config); }));
  }
  return checkpoint;
}

}  // namespace foredraft
