#pragma once

// Which of its instruction paths (kernels/cpu/device/isa.h) the CPU backend takes.

#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace foredraft {

struct IsaPath {
  std::string name;        // as in the configuration: "amx", "avx512", "avx2", "portable"
  bool supported = false;  // by this CPU and its operating system
};

// The index of the path `wanted`; of the first supported one for "" and "auto". `paths`: those of the binary,
// the widest first. INVALID_ARGUMENT for a name that is none of them, FAILED_PRECONDITION for a path that the
// CPU does not support; both list what is allowed here.
absl::StatusOr<int> ChooseIsaPath(const std::string& wanted, std::span<const IsaPath> paths);

}  // namespace foredraft
