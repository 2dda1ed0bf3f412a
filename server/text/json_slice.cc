#include "server/text/json_slice.h"

#include <nlohmann/json.hpp>
#include <string>

namespace foredraft {
namespace {

constexpr char kSpaces[] = " \n\r\t";

size_t SkipSpace(std::string_view text, size_t at) {
  const size_t next = text.find_first_not_of(kSpaces, at);
  return next == std::string_view::npos ? text.size() : next;
}

// Behind the string that begins at `at`.
size_t EndOfString(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at < text.size() ? at + 1 : text.size();
}

// Behind the value that begins at `at`.
size_t EndOfValue(std::string_view text, size_t at) {
  if (at >= text.size()) return text.size();
  if (text[at] == '"') return EndOfString(text, at);
  if (text[at] != '{' && text[at] != '[') {
    const size_t end = text.find_first_of(" \n\r\t,]}", at);
    return end == std::string_view::npos ? text.size() : end;
  }
  for (int depth = 0; at < text.size();) {
    const char byte = text[at];
    if (byte == '"') {
      at = EndOfString(text, at);
      continue;
    }
    ++at;
    if (byte == '{' || byte == '[') ++depth;
    if ((byte == '}' || byte == ']') && --depth == 0) break;
  }
  return at;
}

}  // namespace

std::vector<std::pair<std::string, std::string_view>> MemberTexts(std::string_view object) {
  std::vector<std::pair<std::string, std::string_view>> members;
  size_t at = SkipSpace(object, 0);
  if (at >= object.size() || object[at] != '{') return members;
  for (at = SkipSpace(object, at + 1); at < object.size() && object[at] == '"';) {
    const size_t key_end = EndOfString(object, at);
    const auto name =
        nlohmann::json::parse(object.substr(at, key_end - at), nullptr, /*allow_exceptions=*/false);
    const size_t begin = SkipSpace(object, SkipSpace(object, key_end) + 1);  // behind the colon
    const size_t end = EndOfValue(object, begin);
    if (name.is_string()) members.emplace_back(name.get<std::string>(), object.substr(begin, end - begin));
    at = SkipSpace(object, SkipSpace(object, end) + 1);  // behind the comma
  }
  return members;
}

std::string_view MemberText(std::string_view object, std::string_view key) {
  for (const auto& [name, value] : MemberTexts(object)) {
    if (name == key) return value;
  }
  return {};
}

std::vector<std::string_view> ElementTexts(std::string_view list) {
  std::vector<std::string_view> texts;
  size_t at = SkipSpace(list, 0);
  if (at >= list.size() || list[at] != '[') return texts;
  for (at = SkipSpace(list, at + 1); at < list.size() && list[at] != ']';) {
    const size_t end = EndOfValue(list, at);
    texts.push_back(list.substr(at, end - at));
    at = SkipSpace(list, end);
    if (at < list.size() && list[at] == ',') at = SkipSpace(list, at + 1);
  }
  return texts;
}

}  // namespace foredraft
