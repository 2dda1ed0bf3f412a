#include "engine/model/json_fields.h"

#include "absl/strings/str_format.h"
#include "config/json_text.h"

namespace foredraft {

const nlohmann::json* JsonFields::Find(const char* field) const {
  const auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

int JsonFields::RequiredInt(const char* field, int64_t low, int64_t high) {
  if (Find(field) == nullptr) {
    Refuse(field, "missing", absl::StrFormat("%d..%d", low, high));
    return static_cast<int>(low);
  }
  return OptionalInt(field, static_cast<int>(low), low, high);
}

int JsonFields::OptionalInt(const char* field, int fallback, int64_t low, int64_t high) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) {
    if (fallback < low || fallback > high) {
      Refuse(field, absl::StrFormat("missing, which means %d", fallback),
             absl::StrFormat("%d..%d", low, high));
    }
    return fallback;
  }
  // Above int64's range nlohmann keeps an unsigned number, which get<int64_t> would wrap.
  const bool fits =
      value->is_number_integer() &&
      !(value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits || value->get<int64_t>() < low || value->get<int64_t>() > high) {
    Refuse(field, ShowJson(*value), absl::StrFormat("%d..%d", low, high));
    return fallback;
  }
  return static_cast<int>(value->get<int64_t>());
}

double JsonFields::RequiredDouble(const char* field, double low, double high) {
  if (Find(field) == nullptr) Refuse(field, "missing", absl::StrFormat("%g..%g", low, high));
  return OptionalDouble(field, low, low, high);
}

double JsonFields::OptionalDouble(const char* field, double fallback, double low, double high) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high)) {
    Refuse(field, ShowJson(*value), absl::StrFormat("%g..%g", low, high));
    return fallback;
  }
  return value->get<double>();
}

bool JsonFields::OptionalBool(const char* field, bool fallback) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Refuse(field, ShowJson(*value), "true, false");
    return fallback;
  }
  return value->get<bool>();
}

void JsonFields::AllowOnly(const char* field, const char* allowed) {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return;
  if (!value->is_string() || value->get_ref<const std::string&>() != allowed) {
    Refuse(field, ShowJson(*value), allowed);
  }
}

std::vector<int> JsonFields::Ids(const char* field, int64_t high) {
  const nlohmann::json* value = Find(field);
  std::vector<int> ids;
  if (value == nullptr) return ids;
  const auto add = [&](const nlohmann::json& id) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(high)) {
      Refuse(field, ShowJson(id), absl::StrFormat("ids 0..%d", high));
    } else {
      ids.push_back(static_cast<int>(id.get<uint64_t>()));
    }
  };
  if (value->is_array()) {
    for (const nlohmann::json& id : *value) add(id);
  } else {
    add(*value);
  }
  return ids;
}

void JsonFields::Refuse(const char* field, const std::string& value, const std::string& allowed) {
  Keep(absl::InvalidArgumentError(
      absl::StrFormat("%s: %s%s: %s, allowed %s", file_, path_, field, value, allowed)));
}

}  // namespace foredraft
