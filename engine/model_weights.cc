#include "engine/model_weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint_check.h"
#include "engine/checkpoint/dummy_weights.h"
#include "engine/checkpoint/weight_loader.h"
#include "engine/model/model_kind.h"

namespace foredraft {
namespace {

// True if the checkpoint has a tensor of MTP module `module` other than copies of the target's tensors.
bool HasModule(const Checkpoint& checkpoint, const ModelDescription& description, int module) {
  return std::any_of(description.tensors.begin(), description.tensors.end(), [&](const TensorSpec& tensor) {
    return tensor.mtp_module == module && tensor.kind != TensorKind::kUnread &&
           checkpoint.Find(tensor.name).entry != nullptr;
  });
}

// The number of modules up to the last one of which the checkpoint has a tensor.
int CountModules(const Checkpoint& checkpoint, const ModelDescription& description) {
  int count = description.model->module_count();
  while (count > 0 && !HasModule(checkpoint, description, count - 1)) --count;
  return count;
}

}  // namespace

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& dir, const ModelConfig& config) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(dir, config.mtp_file));
  if (const auto rename = config.kind->rename; rename != nullptr) {
    RETURN_IF_ERROR(checkpoint.Rename([&](const TensorEntry& stored) { return rename(stored, config); }));
  }
  return checkpoint;
}

absl::StatusOr<int> CheckCheckpoint(const Checkpoint& checkpoint, const ModelConfig& config) {
  const int declared = config.num_nextn_predict_layers;
  if (!config.drafter.empty()) {  // the target can serve even if the drafter's stages are missing or faulty
    RETURN_IF_ERROR(CheckTensors(checkpoint, DescribeModel(config, 0)));
    return CheckTensors(checkpoint, DescribeModel(config, declared)).ok() ? declared : 0;
  }
  if (declared > 0) {
    const int present = CountModules(checkpoint, DescribeModel(config, declared));
    if (present > 0) {
      RETURN_IF_ERROR(CheckTensors(checkpoint, DescribeModel(config, present)));
      return present;
    }
  }
  int stored = 0;
  while (HasModule(checkpoint, DescribeModel(config, stored + 1), stored)) ++stored;
  RETURN_IF_ERROR(CheckTensors(checkpoint, DescribeModel(config, stored)));
  return 0;
}

absl::Status CheckModuleCount(const std::string& dir, const ModelConfig& config, int wanted, int loadable) {
  if (wanted <= loadable) return absl::OkStatus();
  const int declared = config.num_nextn_predict_layers;
  if (!config.drafter.empty()) {
    ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(dir, config));
    return CheckTensors(checkpoint, DescribeModel(config, declared));
  }
  std::string why = "config.json declares no more (num_nextn_predict_layers)";
  if (declared > loadable && loadable > 0) {
    why = absl::StrFormat(
        "config.json declares %d (num_nextn_predict_layers), but the checkpoint has tensors of the first %d "
        "alone; set speculative_config.use_mtp_vanilla: false, which drafts with the first one, or use the "
        "original checkpoint",
        declared, loadable);
  } else if (declared > loadable) {
    why = absl::StrFormat(
        "config.json declares %d (num_nextn_predict_layers), but the checkpoint has no tensor of them, as "
        "after transformers has saved it; serve without speculative_config (--drafts 0), or use the original "
        "checkpoint",
        declared);
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: MTP modules: %d, allowed 0..%d: %s", dir, wanted, loadable, why));
}

absl::Status CheckInputScales(const std::string& dir, const ModelConfig& config, int mtp_module_count) {
  if (!config.nvfp4_inputs) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(dir, config));
  return CheckInputScales(checkpoint, DescribeModel(config, mtp_module_count));
}

absl::StatusOr<LoadedWeights> LoadWeights(const std::string& checkpoint_dir, const ModelConfig& config,
                                          int mtp_module_count, Device& device, Stream& stream,
                                          const LoadProgress& progress, const ModelShard& shard) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(checkpoint_dir, config));
  ASSIGN_OR_RETURN(const int loadable, CheckCheckpoint(checkpoint, config));
  RETURN_IF_ERROR(CheckModuleCount(checkpoint_dir, config, mtp_module_count, loadable));
  const ModelDescription description = DescribeModel(config, mtp_module_count, shard);
  RETURN_IF_ERROR(CheckCopies(checkpoint, description));
  RETURN_IF_ERROR(CheckInputScales(checkpoint, description));
  return LoadWeights(checkpoint, description, device, stream, progress);
}

absl::StatusOr<LoadedWeights> MakeDummyWeights(const ModelConfig& config, int mtp_module_count,
                                               Device& device, Stream& stream, const LoadProgress& progress,
                                               const ModelShard& shard) {
  return MakeDummyWeights(DescribeModel(config, mtp_module_count, shard), device, stream, progress);
}

absl::StatusOr<LoadedWeights> AllocateDummyWeights(const ModelConfig& config, int mtp_module_count,
                                                   Device& device, const ModelShard& shard) {
  return AllocateDummyWeights(DescribeModel(config, mtp_module_count, shard), device);
}

int64_t DummyBytes(const ModelConfig& config, int mtp_module_count) {
  return DummyBytes(DescribeModel(config, mtp_module_count));
}

}  // namespace foredraft
