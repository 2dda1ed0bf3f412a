#include "config/json_text.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "absl/strings/str_format.h"

namespace foredraft {

absl::StatusOr<std::string> ReadFileText(const std::string& path, int64_t max_bytes) {
  // Opening a FIFO waits for its writer, and a device may have no end.
  std::error_code error_code;
  const std::filesystem::file_status status = std::filesystem::status(path, error_code);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: not a regular file", path));
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    const int error = errno;
    const std::string text = absl::StrFormat("%s: cannot be opened: %s", path, std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
  }
  std::string text;
  std::vector<char> buffer(1 << 16);
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())), in.gcount() > 0) {
    text.append(buffer.data(), static_cast<size_t>(in.gcount()));
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: larger than %d bytes", path, max_bytes));
    }
  }
  if (in.bad()) return absl::InvalidArgumentError(absl::StrFormat("%s: cannot be read", path));
  return text;
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& file) {
  using Event = nlohmann::json::parse_event_t;
  std::string refusal;                      // the first property of valid JSON that is not accepted here
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto inspect = [&](int depth, Event event, nlohmann::json& parsed) {
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && refusal.empty()) {
        refusal = absl::StrFormat("key %s given twice", ShowJson(parsed));
      }
    }
    if (depth > kMaxJsonDepth && refusal.empty()) {
      refusal = absl::StrFormat("nested deeper than %d", kMaxJsonDepth);
    }
    return refusal.empty();  // false discards the element: memory stays bounded
  };
  try {
    nlohmann::json value = nlohmann::json::parse(text, inspect);
    if (!refusal.empty()) return absl::InvalidArgumentError(absl::StrFormat("%s: %s", file, refusal));
    return value;
  } catch (const nlohmann::json::exception& error) {
    if (!refusal.empty()) return absl::InvalidArgumentError(absl::StrFormat("%s: %s", file, refusal));
    return absl::InvalidArgumentError(absl::StrFormat("%s: not JSON: %s", file, error.what()));
  }
}

std::string ShowJson(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

}  // namespace foredraft
