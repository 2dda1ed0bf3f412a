#pragma once

// GPT-2's byte alphabet, in which byte-level vocabularies are written: one printable character for each of
// the 256 bytes. Bytes that are printable in Latin-1 stand for themselves; the others are U+0100 onwards.

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace foredraft {

// The character that stands for a byte.
const std::array<char32_t, 256>& ByteAlphabet();

// `bytes` as a vocabulary writes them.
std::string TokenOfBytes(std::string_view bytes);

// The bytes that `token` (valid UTF-8) stands for; nullopt if it has a character outside the alphabet.
std::optional<std::string> BytesOfToken(std::string_view token);

}  // namespace foredraft
