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

// The offset after the string that begins at `at`. A quote that ends it has an even number of backslashes
// before it.
size_t EndOfString(std::string_view text, size_t at) {
  const size_t begin = at + 1;
  for (size_t quote = text.find('"', begin); quote != std::string_view::npos;
       quote = text.find('"', quote + 1)) {
    size_t escapes = 0;
    while (quote - escapes > begin && text[quote - escapes - 1] == '\\') ++escapes;
    if (escapes % 2 == 0) return quote + 1;
  }
  return text.size();
}

// The offset after the value that begins at `at`.
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

// Calls `visit` with each member's name, in its quotes, and the text of its value, until it returns false.
template <class Visit>
void ForEachMember(std::string_view object, const Visit& visit) {
  size_t at = SkipSpace(object, 0);
  if (at >= object.size() || object[at] != '{') return;
  for (at = SkipSpace(object, at + 1); at < object.size() && object[at] == '"';) {
    const size_t key_end = EndOfString(object, at);
    const size_t begin = SkipSpace(object, SkipSpace(object, key_end) + 1);  // after the colon
    const size_t end = EndOfValue(object, begin);
    if (!visit(object.substr(at, key_end - at), object.substr(begin, end - begin))) return;
    at = SkipSpace(object, SkipSpace(object, end) + 1);  // after the comma
  }
}

// A name without its quotes and escapes.
std::string NameOf(std::string_view quoted) {
  if (quoted.find('\\') == std::string_view::npos) return std::string(quoted.substr(1, quoted.size() - 2));
  const auto name = nlohmann::json::parse(quoted, nullptr, /*allow_exceptions=*/false);
  return name.is_string() ? name.get<std::string>() : "";
}

}  // namespace

std::vector<std::pair<std::string, std::string_view>> MemberTexts(std::string_view object) {
  std::vector<std::pair<std::string, std::string_view>> members;
  ForEachMember(object, [&members](std::string_view key, std::string_view value) {
    members.emplace_back(NameOf(key), value);
    return true;
  });
  return members;
}

std::string_view MemberText(std::string_view object, std::string_view key) {
  std::string_view found;
  ForEachMember(object, [&](std::string_view quoted, std::string_view value) {
    const bool is_escaped = quoted.find('\\') != std::string_view::npos;
    const bool is_key = is_escaped ? NameOf(quoted) == key : quoted.substr(1, quoted.size() - 2) == key;
    if (is_key) found = value;
    return !is_key;
  });
  return found;
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
