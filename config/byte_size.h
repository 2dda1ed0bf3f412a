#pragma once

// Sizes of memory as people write them.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace foredraft {

// "141GiB", "80 GB", "150000000000": bytes. INVALID_ARGUMENT names the units, also for a number without one
// that is no size of a memory ("128").
absl::StatusOr<int64_t> ParseByteSize(const std::string& text);

}  // namespace foredraft
