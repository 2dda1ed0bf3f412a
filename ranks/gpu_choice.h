#pragma once

// Which GPU a worker process uses. It sees one GPU only, by CUDA_VISIBLE_DEVICES, which CUDA reads when it is
// first used. Whether two workers chose the same one is checked when they join (ranks/membership.h).

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/config.h"

namespace foredraft {

// `visible`: the value of CUDA_VISIBLE_DEVICES; absent: the host's GPUs, by number. FAILED_PRECONDITION names
// the variable and its value.

// The GPU of a host's worker number `index`.
absl::StatusOr<std::string> GpuOfLocalWorker(const std::optional<std::string>& visible, int index);

// The GPU of a worker that was started with `visible`: a single GPU there is its own, whatever its index.
absl::StatusOr<std::string> GpuOfThisWorker(const std::optional<std::string>& visible, int index);

// Sets CUDA_VISIBLE_DEVICES of this process, the worker of `rank`, and logs the choice. The ranks of a host
// follow one another, so rank modulo parallel.local_workers is an index on the host that no other worker
// there has. Does nothing on the CPU. Called before CUDA is used.
absl::Status ChooseGpu(const Config& config, int rank);

}  // namespace foredraft
