#include "server/api/request_id.h"

#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "server/api/request_validator.h"

namespace foredraft {

std::string MakeRequestId() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return absl::StrFormat("r-%016x", generator());
}

std::string PrintableId(std::string_view id) {
  std::string printable;
  for (const char c : id.substr(0, kMaxRequestIdBytes)) {
    if (absl::ascii_isgraph(c) && c != '%') {
      printable.push_back(c);
    } else {
      absl::StrAppendFormat(&printable, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return printable;
}

}  // namespace foredraft
