#pragma once

// Reads untrusted files: a whole file into memory, up to a cap, and JSON without exceptions. Duplicate keys
// and deep nesting are refused.

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace foredraft {

// NOT_FOUND or INVALID_ARGUMENT, naming path and cause; a file above max_bytes is refused.
absl::StatusOr<std::string> ReadFileText(const std::string& path, int64_t max_bytes);

inline constexpr int kMaxJsonDepth = 64;

// INVALID_ARGUMENT names `file`, what is wrong and where: syntax, bytes that are not UTF-8, a key given twice
// in one object, nesting above kMaxJsonDepth, more than max_values numbers, texts, lists and objects.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& file,
                                         int64_t max_values = std::numeric_limits<int64_t>::max());

// Limits of a text that a stranger sends. Reading stops where a limit is exceeded, so that no more is built.
struct JsonLimits {
  int64_t max_values = std::numeric_limits<int64_t>::max();
  // Lists in the member `list_key` of the outermost object, that member included, have at most max_list
  // elements.
  std::string_view list_key;
  int64_t max_list = std::numeric_limits<int64_t>::max();
};
// ParseJson within limits: "<list_key>: more than <max_list> values in a list, allowed at most <max_list>"
// names the member.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& file,
                                         const JsonLimits& limits);

// Whether a text is JSON, nested no deeper than kMaxJsonDepth: only such a text may be given to nlohmann's
// own functions. They end the text at a zero byte, and they recurse when they write.
bool IsJson(std::string_view text);

// Empties a document without allocating memory; nlohmann's destructor allocates for every list and object.
// Meant for documents as large as a stranger may send. Recursive: they must be nested no deeper than
// kMaxJsonDepth.
template <class Json>
void ReleaseJson(Json& value) {
  if (value.is_array()) {
    auto& list = value.template get_ref<typename Json::array_t&>();
    for (Json& item : list) ReleaseJson(item);
    list.clear();
  } else if (value.is_object()) {
    auto& members = value.template get_ref<typename Json::object_t&>();
    for (auto& member : members) ReleaseJson(member.second);
    members.clear();
  }
}
// Calls ReleaseJson at the end of a scope.
template <class Json>
class JsonRelease {
 public:
  explicit JsonRelease(Json& document) : document_(document) {}
  ~JsonRelease() { ReleaseJson(document_); }
  JsonRelease(const JsonRelease&) = delete;
  JsonRelease& operator=(const JsonRelease&) = delete;

 private:
  Json& document_;
};

// A value as an error message shows it: JSON, cut after 80 bytes.
std::string ShowJson(const nlohmann::json& value);
// An object's key as an error message shows it: unchanged if it is short and has only letters, digits and
// _.-, else as JSON.
std::string ShowKey(const std::string& key);

}  // namespace foredraft
