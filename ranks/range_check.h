#pragma once

// Checks of numbers in another process's messages (message_check, plan_codec).
// INVALID_ARGUMENT: "<field>: <value>, allowed <allowed>".

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace foredraft {

template <class T>
absl::Status RefuseField(absl::string_view field, T value, absl::string_view allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", allowed ", allowed));
}

inline absl::Status CheckRange(absl::string_view field, int64_t value, int64_t lowest, int64_t highest) {
  if (value >= lowest && value <= highest) return absl::OkStatus();
  return RefuseField(field, value, absl::StrCat(lowest, "..", highest));
}

inline absl::Status CheckEqual(absl::string_view field, int64_t value, int64_t expected) {
  return value == expected ? absl::OkStatus() : RefuseField(field, value, absl::StrCat(expected));
}

}  // namespace foredraft
