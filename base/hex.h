#pragma once

// Converts hexadecimal digits to bytes. Newer releases of Abseil deprecate the only function for this that
// all its releases have.

#include <charconv>
#include <cstddef>
#include <span>
#include <string_view>
#include <system_error>

namespace foredraft {

// Reads two digits, of either case, for each of `bytes`. False where `hex` has another length or another
// character; `bytes` are then unspecified.
inline bool ReadHex(std::string_view hex, std::span<unsigned char> bytes) {
  if (hex.size() != 2 * bytes.size()) return false;
  const char* digits = hex.data();
  for (unsigned char& byte : bytes) {
    const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
    if (error != std::errc() || end != digits + 2) return false;
    digits = end;
  }
  return true;
}

}  // namespace foredraft
