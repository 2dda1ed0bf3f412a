#pragma once

// Sizes of memory as people write them.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace foredraft {

// Parses "141GiB", "80 GB" or "150000000000" to bytes. INVALID_ARGUMENT names the units, also for a number
// without a unit that is too small for a memory ("128").
absl::StatusOr<int64_t> ParseByteSize(const std::string& text);

}  // namespace foredraft
