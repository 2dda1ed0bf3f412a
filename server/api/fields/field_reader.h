#pragma once

// The fields of one JSON object of a request. The first fault is kept, so that fields are read one per line
// and status() is asked once. A field that is null is absent. Every field must be asked for: what is left at
// the end is unknown and refused (RefuseUnknown). Not thread-safe.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace foredraft {

// The payload of a refusal that names a field as the client does.
inline constexpr char kClientField[] = "foredraft.openai.field";

class FieldReader {
 public:
  // `object` outlives this. `path` stands before field names in errors: "" or "stream_options.".
  FieldReader(const nlohmann::json& object, std::string path) : object_(object), path_(std::move(path)) {}

  // Null where absent.
  const nlohmann::json* Find(const char* field);

  std::optional<int32_t> Int(const char* field);
  std::optional<uint64_t> Seed(const char* field);
  std::optional<float> Float(const char* field);
  std::optional<double> Double(const char* field);
  bool Bool(const char* field, bool fallback);
  std::optional<std::string> String(const char* field);
  // One string, or a list of them.
  std::vector<std::string> Strings(const char* field);
  std::vector<int32_t> Ids(const char* field);

  // Refuses every value but `allowed`, which is what an absent field means: "<field>: <value>, <text>".
  void AllowOnly(const char* field, const nlohmann::json& allowed, const std::string& text);
  // Fields that change nothing.
  void Ignore(std::initializer_list<const char*> fields);
  // "<path><field>: <text>"
  void Refuse(const std::string& field, const std::string& text);
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  // Refuses the first field that was not asked for, with the nearest that was.
  void RefuseUnknown();

  const absl::Status& status() const { return status_; }

 private:
  void RefuseValue(const char* field, const nlohmann::json& value, const char* allowed);

  const nlohmann::json& object_;
  const std::string path_;
  std::vector<std::string> known_;
  absl::Status status_;
};

// The numbers of a JSON array as token ids. INVALID_ARGUMENT names the first that is none.
absl::Status ReadIds(const nlohmann::json& array, const std::string& field, std::vector<int32_t>& ids);

}  // namespace foredraft
