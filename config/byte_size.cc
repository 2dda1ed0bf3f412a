#include "config/byte_size.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

constexpr double kLeastBytes = 1 << 20;

struct Unit {
  const char* name;
  double bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},      {"B", 1},      {"KB", 1e3},      {"MB", 1e6},      {"GB", 1e9},
    {"TB", 1e12}, {"KiB", 1024}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1099511627776.0}};

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string unit(absl::StripAsciiWhitespace(text.substr(digits)));
  double number = 0;
  for (const Unit& known : kUnits) {
    if (absl::AsciiStrToLower(unit) != absl::AsciiStrToLower(known.name)) continue;
    if (!absl::SimpleAtod(text.substr(0, digits), &number)) break;
    const double bytes = number * known.bytes;
    if (bytes >= (unit.empty() ? kLeastBytes : 1) && bytes < 1e15) return static_cast<int64_t>(bytes);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      text,
      ": allowed a number with a unit, as in 141GiB, 768GiB or 80GB (KiB, MiB, GiB, TiB, KB, MB, GB, TB)"));
}

}  // namespace foredraft
