#pragma once

// The fields of one JSON object of a request. The first fault is kept, so that fields are read one per line
// and status() is asked once. A null field is absent. A field that no reader has asked for has its class in
// field_classes.inc, or is unknown (End). Not thread-safe.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/text/field_notes.h"

namespace foredraft {

// The payload that marks a refusal whose text names the field as the client does.
inline constexpr char kClientField[] = "foredraft.openai.field";

// What the readers of one request share.
struct FieldContext {
  NotedWire wire;
  bool refuses_unknown = false;  // server.unknown_fields
  FieldNotes notes = {};
  std::set<std::string>* asked = nullptr;  // set by a test that wants the names that readers ask for
};

class FieldReader {
 public:
  // `object` and `context` outlive this. `path` stands before field names in errors: "" or "stream_options.".
  FieldReader(const nlohmann::json& object, std::string path, FieldContext& context)
      : object_(object), path_(std::move(path)), context_(context) {}

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

  // Notes that the field, which was taken, has no effect in this request.
  void Drop(const std::string& field) { context_.notes.Dropped(path_ + field); }
  // "<path><field>: <text>"
  void Refuse(const std::string& field, const std::string& text);
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }
  // After the last field: refuses fields that would change the answer and are not supported, notes fields
  // without effect.
  void End();

  const absl::Status& status() const { return status_; }
  const std::string& path() const { return path_; }
  FieldContext& context() { return context_; }

 private:
  void EndField(const std::string& scope, const std::string& key, const nlohmann::json& value);
  void EndUnknown(const std::string& scope, const std::string& key);
  bool WasAsked(const std::string& key) const;
  void RefuseValue(const char* field, const nlohmann::json& value, const char* allowed);

  const nlohmann::json& object_;
  const std::string path_;
  FieldContext& context_;
  std::vector<const char*> asked_;
  absl::Status status_;
};

// The numbers of a JSON array as token ids. INVALID_ARGUMENT names the first element that is no token id.
absl::Status ReadIds(const nlohmann::json& array, const std::string& field, std::vector<int32_t>& ids);

}  // namespace foredraft
