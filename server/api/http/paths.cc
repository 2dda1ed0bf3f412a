#include "server/api/http/paths.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"

namespace foredraft {

std::string NormalPath(std::string_view path) {
  if (path.starts_with("//")) path.remove_prefix(1);
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return std::string(path);
}

std::optional<std::string> PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      decoded.push_back(text[at]);
      continue;
    }
    const std::string hex(text.substr(at + 1, 2));
    const bool is_hex = hex.size() == 2 && absl::ascii_isxdigit(static_cast<unsigned char>(hex[0])) &&
                        absl::ascii_isxdigit(static_cast<unsigned char>(hex[1]));
    if (!is_hex || hex == "00") return std::nullopt;
    decoded += absl::HexStringToBytes(hex);
    at += 2;
  }
  return decoded;
}

}  // namespace foredraft
