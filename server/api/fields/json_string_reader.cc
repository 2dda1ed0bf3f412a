#include "server/api/fields/json_string_reader.h"

#include <nlohmann/json.hpp>

namespace foredraft {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";
constexpr size_t kUnicodeEscape = 6;  // bytes of \uXXXX

bool IsHighSurrogate(std::string_view escape) {
  return escape.size() >= 4 && (escape[2] == 'd' || escape[2] == 'D') &&
         std::string_view("89abAB").find(escape[3]) != std::string_view::npos;
}

// Whether more of the escape has to come.
bool IsBeginning(std::string_view escape) {
  if (escape.size() < 2) return true;
  if (escape[1] != 'u') return false;
  if (escape.size() < kUnicodeEscape) return true;
  return IsHighSurrogate(escape) && escape.size() < 2 * kUnicodeEscape;
}

std::string Unescaped(const std::string& escape) {
  const auto text = nlohmann::json::parse("\"" + escape + "\"", nullptr, /*allow_exceptions=*/false);
  return text.is_string() ? text.get<std::string>() : kReplacement;
}

}  // namespace

void JsonStringReader::ReadInString(char byte, std::string& text) {
  if (pending_.empty()) {
    if (byte == '\\') {
      pending_ = byte;
    } else if (byte == '"') {
      state_ = State::kBehind;
    } else {
      text += byte;
    }
    return;
  }
  // `pending_` begins with half of a surrogate pair, and the other half does not follow.
  const bool is_lone = (pending_.size() == kUnicodeEscape && byte != '\\') ||
                       (pending_.size() == kUnicodeEscape + 1 && byte != 'u');
  if (is_lone) {
    text += kReplacement;
    pending_.erase(0, kUnicodeEscape);
    return ReadInString(byte, text);
  }
  pending_ += byte;
  if (IsBeginning(pending_)) return;
  text += Unescaped(pending_);
  pending_.clear();
}

std::string JsonStringReader::Read(std::string_view piece) {
  std::string text;
  for (const char byte : piece) {
    switch (state_) {
      case State::kBeforeColon:
        if (byte == '"') {
          in_key_ = !in_key_;
        } else if (byte == ':' && !in_key_) {
          state_ = State::kBeforeString;
        }
        break;
      case State::kBeforeString:
        if (byte == '"') {
          state_ = State::kInString;
        } else if (std::string_view(" \n\r\t").find(byte) == std::string_view::npos) {
          state_ = State::kBehind;  // the value is no string
        }
        break;
      case State::kInString:
        ReadInString(byte, text);
        break;
      case State::kBehind:
        return text;
    }
  }
  return text;
}

}  // namespace foredraft
