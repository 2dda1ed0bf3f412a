#include "kernels/cpu/device/isa_choice.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace foredraft {

absl::StatusOr<int> ChooseIsaPath(const std::string& wanted, std::span<const IsaPath> paths) {
  std::string allowed = "auto";
  bool known = false;
  for (size_t i = 0; i < paths.size(); ++i) {
    const bool is_wanted = wanted.empty() || wanted == "auto" || wanted == paths[i].name;
    if (is_wanted && paths[i].supported) return static_cast<int>(i);
    known = known || is_wanted;
    if (paths[i].supported) absl::StrAppend(&allowed, ", ", paths[i].name);
  }
  if (!known) {
    return absl::InvalidArgumentError(absl::StrFormat("cpu.isa: %s, allowed %s", wanted, allowed));
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("cpu.isa: %s, allowed %s: this CPU does not have %s", wanted, allowed, wanted));
}

}  // namespace foredraft
