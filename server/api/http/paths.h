#pragma once

// Paths as clients and proxies write them.

#include <optional>
#include <string>
#include <string_view>

namespace foredraft {

// `path` without the first of two leading slashes and without a trailing slash; nothing else is changed.
std::string NormalPath(std::string_view path);
// `text` with each %XX decoded to its byte, in one pass. Nothing if a % is followed by anything else, or a
// byte is 0.
std::optional<std::string> PercentDecoded(std::string_view text);

}  // namespace foredraft
