#include "engine/checkpoint/checkpoint_names.h"

#include <utility>

#include "base/status_macros.h"
#include "engine/model/deepseek_v4/deepseek_v4_names.h"

namespace foredraft {

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& dir, const ModelConfig& config) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(dir, config.mtp_file));
  if (config.v4) {
    RETURN_IF_ERROR(
        checkpoint.Rename([&](const TensorEntry& stored) { return NameDeepseekV4(stored, config); }));
  }
  return checkpoint;
}

}  // namespace foredraft
