#include "server/text/byte_alphabet.h"

#include "server/text/utf8.h"

namespace foredraft {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;  // 256 + the 68 bytes that are not printable

bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

std::array<char32_t, 256> MakeByteAlphabet() {
  std::array<char32_t, 256> alphabet;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) alphabet[byte] = IsPrintable(byte) ? byte : next++;
  return alphabet;
}

// The byte of each character of the alphabet, -1 for the characters in between.
std::array<int, kAlphabetEnd> MakeBytes() {
  std::array<int, kAlphabetEnd> bytes;
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) bytes[ByteAlphabet()[byte]] = byte;
  return bytes;
}

}  // namespace

const std::array<char32_t, 256>& ByteAlphabet() {
  static const std::array<char32_t, 256> alphabet = MakeByteAlphabet();
  return alphabet;
}

std::string TokenOfBytes(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) AppendUtf8(ByteAlphabet()[static_cast<unsigned char>(byte)], token);
  return token;
}

std::optional<std::string> BytesOfToken(std::string_view token) {
  static const std::array<int, kAlphabetEnd> bytes = MakeBytes();
  std::string result;
  while (!token.empty()) {
    const Utf8Step step = ReadUtf8(token);
    if (step.kind != Utf8Step::kCharacter || step.code_point >= kAlphabetEnd) return std::nullopt;
    const int byte = bytes[step.code_point];
    if (byte < 0) return std::nullopt;
    result.push_back(static_cast<char>(byte));
    token.remove_prefix(step.byte_count);
  }
  return result;
}

}  // namespace foredraft
