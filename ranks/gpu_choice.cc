#include "ranks/gpu_choice.h"

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "config/config_defaults.h"

namespace foredraft {
namespace {

constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";

std::vector<std::string> Gpus(const std::string& visible) {
  return absl::StrSplit(visible, ',', absl::SkipWhitespace());
}

}  // namespace

absl::StatusOr<std::string> GpuOfLocalWorker(const std::optional<std::string>& visible, int index) {
  if (!visible.has_value()) return absl::StrCat(index);
  const std::vector<std::string> gpus = Gpus(*visible);
  if (static_cast<size_t>(index) < gpus.size()) return gpus[index];
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: \"%s\", needs an entry for worker %d of this host (counted from 0)", kVisible, *visible, index));
}

absl::StatusOr<std::string> GpuOfThisWorker(const std::optional<std::string>& visible, int index) {
  if (visible.has_value() && Gpus(*visible).size() == 1) return Gpus(*visible)[0];
  return GpuOfLocalWorker(visible, index);
}

absl::Status ChooseGpu(const Config& config, int rank) {
  if (config.backend != Backend::kCuda) return absl::OkStatus();
  const char* const value = std::getenv(kVisible);
  const std::optional<std::string> visible =
      value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  const int workers_here = LocalRankCount(config);
  ASSIGN_OR_RETURN(const std::string gpu, GpuOfThisWorker(visible, rank % workers_here));
  setenv(kVisible, gpu.c_str(), /*overwrite=*/1);
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", /*overwrite=*/0);  // numbers as nvidia-smi has them
  Log(LogLevel::kInfo, "rank %d takes GPU %s: worker %d of %d on this host, %s was %s", rank, gpu,
      rank % workers_here, workers_here, kVisible, visible.value_or("not set"));
  return absl::OkStatus();
}

}  // namespace foredraft
