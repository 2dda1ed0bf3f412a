// Reads values of keys from YAML into members, and writes them as text.

#include <algorithm>
#include <set>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "config/byte_size.h"
#include "config/config_fields.h"
#include "config/yaml_text.h"

namespace foredraft {
namespace {

bool IsUrl(std::string_view text) { return text.find("://") != std::string_view::npos; }

bool IsAddress(std::string_view text) {
  if (text.starts_with("unix:")) return text.size() > 5;
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || IsUrl(text)) return false;
  int port = 0;
  return absl::SimpleAtoi(std::string(text.substr(colon + 1)), &port) && port >= 0 && port <= 65535;
}

// The text of a scalar that is not quoted; null for any other node.
const std::string* PlainText(const YAML::Node& node) {
  return node.IsScalar() && !IsQuoted(node) ? &node.Scalar() : nullptr;
}

// "8GiB": begins with a number and ends with a letter.
bool HasUnit(std::string_view text) {
  return text.size() > 1 && absl::ascii_isdigit(static_cast<unsigned char>(text.front())) &&
         absl::ascii_isalpha(static_cast<unsigned char>(text.back()));
}

// True for 010: eight to YAML 1.1, ten to YAML 1.2, and a slip to most people who write it.
bool HasLeadingZero(std::string_view number) {
  if (number.starts_with('-') || number.starts_with('+')) number.remove_prefix(1);
  return number.size() > 1 && number[0] == '0' && absl::ascii_isdigit(static_cast<unsigned char>(number[1]));
}

// Reads one value into a member; false = it is of another type or out of range.
class ValueReader {
 public:
  ValueReader(const ConfigRange& range, const YAML::Node& node) : range_(range), node_(node) {}

  bool Read(std::string& out) const {
    if (!node_.IsScalar() || node_.Scalar().empty()) return false;
    const std::string* plain = PlainText(node_);
    if (plain != nullptr && (*plain == "true" || *plain == "false")) return false;
    const bool none = range_.kind == ConfigRange::kAddressOrNone && node_.Scalar() == kNoListener;
    if ((range_.kind == ConfigRange::kAddress || range_.kind == ConfigRange::kAddressOrNone) && !none &&
        !IsAddress(node_.Scalar()))
      return false;
    out = node_.Scalar();
    return true;
  }

  template <class Enum>
  requires std::is_enum_v<Enum>
  bool Read(Enum& out) const {
    const auto names = EnumNames(out);
    const auto name = node_.IsScalar() ? std::find(names.begin(), names.end(), node_.Scalar()) : names.end();
    if (name == names.end()) return false;
    out = static_cast<Enum>(name - names.begin());
    return true;
  }

  bool Read(bool& out) const {
    const std::string* plain = PlainText(node_);
    if (plain == nullptr || (*plain != "true" && *plain != "false")) return false;
    out = *plain == "true";
    return true;
  }

  bool Read(int64_t& out) const {
    const std::string* plain = PlainText(node_);
    int64_t value = 0;
    if (plain != nullptr && range_.kind == ConfigRange::kBytes && HasUnit(*plain)) {
      const absl::StatusOr<int64_t> bytes = ParseByteSize(*plain);
      if (bytes.ok()) out = *bytes;
      return bytes.ok();
    }
    if (plain == nullptr || HasLeadingZero(*plain) || !absl::SimpleAtoi(*plain, &value) ||
        value < range_.low || value > range_.high) {
      return false;
    }
    out = value;
    return true;
  }

  bool Read(int& out) const {
    int64_t value = 0;
    if (!Read(value)) return false;
    out = static_cast<int>(value);
    return true;
  }

  bool Read(double& out) const {
    const std::string* plain = PlainText(node_);
    double value = 0;
    if (plain == nullptr || HasLeadingZero(*plain) || !absl::SimpleAtod(*plain, &value)) return false;
    if (!(value >= range_.low && value <= range_.high)) return false;
    out = value;
    return true;
  }

  template <class T>
  bool Read(std::optional<T>& out) const {
    T value{};
    if (!Read(value)) return false;
    out = value;
    return true;
  }

  bool Read(std::vector<int>& out) const {
    if (!node_.IsSequence() || node_.size() == 0) return false;
    std::vector<int> values;
    for (const YAML::Node& item : node_) {
      int value = 0;
      if (!ValueReader(range_, item).Read(value)) return false;
      if (!values.empty() && value <= values.back()) return false;
      values.push_back(value);
    }
    out = values;
    return true;
  }

  bool Read(std::vector<std::string>& out) const {
    if (!node_.IsSequence() || node_.size() == 0) return false;
    std::vector<std::string> values;
    for (const YAML::Node& item : node_) {
      if (!ValueReader(range_, item).Read(values.emplace_back())) return false;
    }
    out = values;
    return true;
  }

  bool Read(std::map<int, int>& out) const {
    if (!node_.IsMap() || node_.size() == 0) return false;
    std::map<int, int> values;
    for (const auto& entry : node_) {
      int bucket = 0;
      int value = 0;
      if (!absl::SimpleAtoi(entry.first.Scalar(), &bucket) || bucket < 1) return false;
      if (!ValueReader(range_, entry.second).Read(value)) return false;
      if (!values.emplace(bucket, value).second) return false;  // "4" and "04"
    }
    out = values;
    return true;
  }

 private:
  const ConfigRange& range_;
  const YAML::Node& node_;
};

struct ValueKind {
  std::string_view type;
  std::string allowed;
};

std::string ShowRange(const ConfigRange& range) {
  return absl::StrFormat("%.10g..%.10g", range.low, range.high);
}

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class T>
ValueKind KindOf(const ConfigRange& range) {
  if constexpr (IsOptional<T>::value) return KindOf<typename T::value_type>(range);
  if constexpr (std::is_same_v<T, bool>) return {"bool", "true, false"};
  if constexpr (std::is_enum_v<T>) return {"choice", absl::StrJoin(EnumNames(T()), ", ")};
  if constexpr (std::is_integral_v<T>) {
    const bool bytes = range.kind == ConfigRange::kBytes;
    return {"integer", absl::StrCat(ShowRange(range), bytes ? " bytes, or a size like 8GiB" : "")};
  }
  if constexpr (std::is_same_v<T, double>) return {"number", ShowRange(range)};
  if constexpr (std::is_same_v<T, std::vector<int>>) {
    return {"list", absl::StrCat("an ascending list of ", ShowRange(range))};
  }
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return {"list", "a list of texts"};
  if constexpr (std::is_same_v<T, std::map<int, int>>) {
    return {"mapping", absl::StrCat("a mapping of batch sizes to ", ShowRange(range))};
  }
  if (range.kind == ConfigRange::kAddressOrNone) return {"text", "host:port, unix:path, none"};
  return {"text", range.kind == ConfigRange::kAddress ? "host:port, unix:path" : "text"};
}

ValueKind KindOf(const ConfigField& field) {
  return std::visit([&]<class T>(T& (*)(Config&)) { return KindOf<T>(field.range); }, field.member);
}

// A value as an error shows it: lists and maps with their elements.
std::string ShowValue(const YAML::Node& node) {
  std::vector<std::string> parts;
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) parts.push_back(ShowYaml(item));
    return absl::StrCat("[", ShowText(absl::StrJoin(parts, ", ")), "]");
  }
  if (node.IsMap()) {
    for (const auto& entry : node) {
      parts.push_back(absl::StrCat(ShowText(entry.first.Scalar()), ": ", ShowYaml(entry.second)));
    }
    return absl::StrCat("{", ShowText(absl::StrJoin(parts, ", ")), "}");
  }
  return ShowYaml(node);
}

// The text as it is where YAML reads it back as the same string, else quoted.
std::string QuoteText(const std::string& text) {
  const auto plain_char = [](char c) {
    return absl::ascii_isalnum(c) || std::string_view("_./-").find(c) != std::string_view::npos;
  };
  double number = 0;
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), plain_char) &&
                     (absl::ascii_isalpha(text[0]) || text[0] == '/') && !absl::SimpleAtod(text, &number);
  static const std::set<std::string, std::less<>> kWords = {"true", "false", "null", "yes", "no",
                                                            "on",   "off",   "y",    "n"};
  if (plain && !kWords.contains(absl::AsciiStrToLower(text))) return text;
  std::string quoted;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted.append({'\\', c});
    } else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) {
      absl::StrAppendFormat(&quoted, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      quoted.push_back(c);
    }
  }
  return absl::StrCat("\"", quoted, "\"");
}

// The shortest text that reads back as the same number.
std::string ShowNumber(double value) {
  for (int digits = 1; digits < 17; ++digits) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    double back = 0;
    if (absl::SimpleAtod(text, &back) && back == value) return text;
  }
  return absl::StrFormat("%.17g", value);
}

std::string ShowMember(const std::string& value, bool nullable) {
  return value.empty() && nullable ? "null" : QuoteText(value);
}
template <class Enum>
requires std::is_enum_v<Enum> std::string ShowMember(Enum value, bool) { return std::string(NameOf(value)); }
std::string ShowMember(bool value, bool) { return value ? "true" : "false"; }
std::string ShowMember(int64_t value, bool nullable) {
  return value == 0 && nullable ? "null" : absl::StrFormat("%d", value);
}
std::string ShowMember(int value, bool nullable) { return ShowMember(int64_t{value}, nullable); }
std::string ShowMember(double value, bool) { return ShowNumber(value); }
template <class T>
std::string ShowMember(const std::optional<T>& value, bool) {
  return value ? ShowMember(*value, false) : "null";
}
std::string ShowMember(const std::vector<int>& value, bool) {
  return value.empty() ? "null" : absl::StrCat("[", absl::StrJoin(value, ", "), "]");
}
std::string ShowMember(const std::vector<std::string>& value, bool) {
  std::vector<std::string> texts;
  for (const std::string& text : value) texts.push_back(QuoteText(text));
  return value.empty() ? "null" : absl::StrCat("[", absl::StrJoin(texts, ", "), "]");
}
std::string ShowMember(const std::map<int, int>& value, bool) {
  return value.empty() ? "null"
                       : absl::StrCat("{", absl::StrJoin(value, ", ", absl::PairFormatter(": ")), "}");
}

// The unit that the path of a number names.
std::string_view UnitOf(std::string_view path) {
  if (path.ends_with("_ms")) return "milliseconds";
  if (path.ends_with("_s")) return "seconds";
  return path.ends_with("_mib") ? "MiB" : "";
}

// A hint for a value that is refused although it looks right.
std::string Hint(const ConfigField& field, const YAML::Node& value) {
  if (!value.IsScalar()) return "";
  const std::string_view type = TypeOf(field);
  if (IsQuoted(value) && (type == "integer" || type == "number" || type == "bool")) {
    return ": in quotes it is text";
  }
  if (type == "text" && IsUrl(value.Scalar())) return ": without http://";
  const std::string_view unit = UnitOf(field.path);
  if (unit.empty() || !HasUnit(value.Scalar())) return "";
  return absl::StrCat(": a number of ", std::string(unit), ", without a unit");
}

}  // namespace

absl::Status SetField(const ConfigField& field, const YAML::Node& value, Config& config) {
  const bool done = std::visit(
      [&](auto member) {
        auto& out = member(config);
        if (!value.IsNull()) return ValueReader(field.range, value).Read(out);
        if (field.nullable()) out = {};
        return field.nullable();
      },
      field.member);
  if (done) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ShowValue(value), ", allowed ", AllowedValues(field), Hint(field, value)));
}

std::string ShowField(const ConfigField& field, const Config& config) {
  Config copy = config;  // members are reached through a mutable Config
  return std::visit([&](auto member) { return ShowMember(member(copy), field.nullable()); }, field.member);
}

std::string_view TypeOf(const ConfigField& field) { return KindOf(field).type; }

std::string AllowedValues(const ConfigField& field) {
  return absl::StrCat(KindOf(field).allowed, field.nullable() ? ", null" : "");
}

}  // namespace foredraft
