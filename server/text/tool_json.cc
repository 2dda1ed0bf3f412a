#include "server/text/tool_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "config/json_text.h"

namespace foredraft {
namespace {

// The end of the JSON string that begins at `text[begin]`, after its closing quote.
size_t EndOfString(std::string_view text, size_t begin) {
  size_t at = begin + 1;
  while (text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  return at + 1;
}

}  // namespace

std::string QuotedJson(std::string_view text) {
  return nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void AppendEscapedJson(std::string_view text, std::string& out) {
  const std::string quoted = QuotedJson(text);
  out.append(quoted, 1, quoted.size() - 2);
}

std::string SpacedJson(std::string_view json, JsonSpacing spacing) {
  if (!IsJson(json)) return std::string(json);
  const char* const space = spacing == JsonSpacing::kSpaced ? " " : "";
  std::string out;
  for (size_t at = 0; at < json.size();) {
    const char byte = json[at];
    if (byte == '"') {
      const size_t end = EndOfString(json, at);
      out += QuotedJson(nlohmann::json::parse(json.substr(at, end - at)).get<std::string>());
      at = end;
      continue;
    }
    ++at;
    if (byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t') continue;
    out += byte;
    if (byte == ',' || byte == ':') out += space;
  }
  return out;
}

std::string FunctionJson(const ChatTool& tool, JsonSpacing spacing, bool shows_strict) {
  std::string json = absl::StrCat("{\"name\":", QuotedJson(tool.name));
  if (!tool.description.empty()) absl::StrAppend(&json, ",\"description\":", QuotedJson(tool.description));
  if (!tool.parameters.empty()) absl::StrAppend(&json, ",\"parameters\":", tool.parameters);
  if (shows_strict && tool.says_strict)
    absl::StrAppend(&json, ",\"strict\":", tool.strict ? "true" : "false");
  return SpacedJson(json + "}", spacing);
}

std::string ToolJson(const ChatTool& tool, JsonSpacing spacing) {
  return SpacedJson(absl::StrCat("{\"type\":\"function\",\"function\":", FunctionJson(tool, spacing), "}"),
                    spacing);
}

}  // namespace foredraft
