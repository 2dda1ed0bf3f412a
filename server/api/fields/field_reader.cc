#include "server/api/fields/field_reader.h"

#include <algorithm>
#include <limits>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "config/json_text.h"
#include "server/api/fields/field_classes.h"

namespace foredraft {
namespace {

constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr size_t kMostNameBytes = 64;  // of a field's name
constexpr int32_t kMinInt = std::numeric_limits<int32_t>::min();

bool IsInt32(const nlohmann::json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= static_cast<uint64_t>(kMaxInt);
  if (!value.is_number_integer()) return false;
  const int64_t number = value.get<int64_t>();
  return number >= kMinInt && number <= kMaxInt;
}

}  // namespace

const nlohmann::json* FieldReader::Find(const char* field) {
  asked_.push_back(field);
  if (context_.asked != nullptr) context_.asked->insert(NoteName(path_ + field));
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void FieldReader::Refuse(const std::string& field, const std::string& text) {
  const std::string name = absl::StrCat(path_, field);
  absl::Status refusal = absl::InvalidArgumentError(absl::StrCat(name, ": ", text));
  refusal.SetPayload(kClientField, absl::Cord(name));
  Keep(refusal);
}

void FieldReader::RefuseValue(const char* field, const nlohmann::json& value, const char* allowed) {
  Refuse(field, absl::StrCat(ShowJson(value), ", allowed ", allowed));
}

std::optional<int32_t> FieldReader::Int(const char* field) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (IsInt32(*value)) return static_cast<int32_t>(value->get<int64_t>());
  RefuseValue(field, *value, "a whole number of 32 bits");
  return std::nullopt;
}

std::optional<uint64_t> FieldReader::Seed(const char* field) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  // Other servers take negative seeds, too: only the bits count.
  if (value->is_number_integer()) return static_cast<uint64_t>(value->get<int64_t>());
  RefuseValue(field, *value, "a whole number of 64 bits");
  return std::nullopt;
}

std::optional<double> FieldReader::Double(const char* field) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  RefuseValue(field, *value, "a number");
  return std::nullopt;
}

std::optional<float> FieldReader::Float(const char* field) {
  const std::optional<double> value = Double(field);
  if (!value.has_value()) return std::nullopt;
  // Converting a double outside of float's range is undefined.
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(*value, -kMost, kMost));
}

bool FieldReader::Bool(const char* field, bool fallback) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  RefuseValue(field, *value, "true, false");
  return fallback;
}

std::optional<std::string> FieldReader::String(const char* field) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  RefuseValue(field, *value, "a string");
  return std::nullopt;
}

std::vector<std::string> FieldReader::Strings(const char* field) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  const bool is_list = value->is_array() && std::all_of(value->begin(), value->end(),
                                                        [](const auto& item) { return item.is_string(); });
  if (is_list) return value->get<std::vector<std::string>>();
  RefuseValue(field, *value, "a string or a list of strings");
  return {};
}

std::vector<int32_t> FieldReader::Ids(const char* field) {
  std::vector<int32_t> ids;
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return ids;
  if (value->is_array()) {
    Keep(ReadIds(*value, path_ + field, ids));
  } else {
    RefuseValue(field, *value, "a list of token ids");
  }
  return ids;
}

// A field of class kTaken that no reader asked for belongs to another form of the same object, such as
// tool_choice.mode in the form that names a function: here it is unknown.
void FieldReader::EndField(const std::string& scope, const std::string& key, const nlohmann::json& value) {
  const FieldRow* const row =
      key.size() <= kMostNameBytes ? FindFieldRow(context_.wire, absl::StrCat(scope, key)) : nullptr;
  if (row == nullptr) return EndUnknown(scope, key);
  switch (row->field_class) {
    case FieldClass::kIgnored:
      return;
    case FieldClass::kHint:
      return context_.notes.Dropped(path_ + key);
    case FieldClass::kRefused: {
      const auto neutral = nlohmann::json::parse(row->neutral);
      if (std::find(neutral.begin(), neutral.end(), value) != neutral.end()) return;
      return Refuse(key, absl::StrCat(ShowJson(value), ", ", row->note));
    }
    case FieldClass::kTaken:
      break;
  }
  if (!WasAsked(key)) EndUnknown(scope, key);
}

void FieldReader::EndUnknown(const std::string& scope, const std::string& key) {
  if (!context_.refuses_unknown) return context_.notes.Unknown(path_ + key.substr(0, kMostNameBytes + 1));
  if (!status_.ok()) return;
  std::string text = "unknown";
  if (key.size() <= kMostNameBytes) {
    const std::string_view nearest = NearestField(context_.wire, scope, key);
    if (!nearest.empty()) absl::StrAppend(&text, ", nearest is ", path_, std::string(nearest));
  }
  Refuse(ShowKey(key), text);
}

void FieldReader::End() {
  // A message has few fields, most of which were asked for. In an object with many, each one's class is
  // looked up first.
  constexpr size_t kFewFields = 32;
  const bool is_small = object_.size() <= kFewFields;
  std::string scope;
  for (const auto& [key, value] : object_.items()) {
    if (value.is_null() || (is_small && WasAsked(key))) continue;
    if (scope.empty()) scope = NoteName(path_);
    EndField(scope, key, value);
  }
}

bool FieldReader::WasAsked(const std::string& key) const {
  return std::any_of(asked_.begin(), asked_.end(), [&key](const char* asked) { return key == asked; });
}

absl::Status ReadIds(const nlohmann::json& array, const std::string& field, std::vector<int32_t>& ids) {
  ids.reserve(array.size());
  for (const nlohmann::json& value : array) {
    if (!IsInt32(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "[", ids.size(), "]: ", ShowJson(value), ", allowed a token id"));
    }
    ids.push_back(static_cast<int32_t>(value.get<int64_t>()));
  }
  return absl::OkStatus();
}

}  // namespace foredraft
