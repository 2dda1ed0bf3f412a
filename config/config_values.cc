// Values of keys: from YAML into a member, and back to text.

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "config/config_fields.h"

namespace foredraft {
namespace {

bool IsAddress(std::string_view text) {
  if (text.starts_with("unix:")) return text.size() > 5;
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  int port = 0;
  return absl::SimpleAtoi(std::string(text.substr(colon + 1)), &port) && port >= 0 && port <= 65535;
}

// A plain scalar that is a decimal integer.
bool ReadInt(const YamlNode& node, int64_t& value) {
  return node.kind == YamlNode::kScalar && !node.quoted && absl::SimpleAtoi(node.text, &value);
}

// Reads one value into a member; false = it is of another type or out of range.
class ValueReader {
 public:
  ValueReader(const ConfigRange& range, const YamlNode& node) : range_(range), node_(node) {}

  bool Read(std::string& out) const {
    if (node_.kind != YamlNode::kScalar || node_.text.empty()) return false;
    if (!node_.quoted && (node_.text == "true" || node_.text == "false")) return false;
    if (range_.kind == ConfigRange::kAddress && !IsAddress(node_.text)) return false;
    if (range_.kind == ConfigRange::kChoice) {
      const std::vector<std::string> choices = absl::StrSplit(std::string(range_.choices), ", ");
      if (std::find(choices.begin(), choices.end(), node_.text) == choices.end()) return false;
    }
    out = node_.text;
    return true;
  }

  bool Read(bool& out) const {
    if (node_.kind != YamlNode::kScalar || node_.quoted) return false;
    out = node_.text == "true";
    return out || node_.text == "false";
  }

  bool Read(int64_t& out) const {
    int64_t value = 0;
    if (!ReadInt(node_, value) || value < range_.low || value > range_.high) return false;
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
    double value = 0;
    if (node_.kind != YamlNode::kScalar || node_.quoted || !absl::SimpleAtod(node_.text, &value))
      return false;
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
    if (node_.kind != YamlNode::kList || node_.items.empty()) return false;
    std::vector<int> values(node_.items.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if (!ValueReader(range_, node_.items[i]).Read(values[i])) return false;
      if (i > 0 && values[i] <= values[i - 1]) return false;
    }
    out = values;
    return true;
  }

  bool Read(std::map<int, int>& out) const {
    if (node_.kind != YamlNode::kMap || node_.entries.empty()) return false;
    std::map<int, int> values;
    for (const auto& [key, value] : node_.entries) {
      int bucket = 0;
      int number = 0;
      if (!absl::SimpleAtoi(key, &bucket) || bucket < 1 || !ValueReader(range_, value).Read(number))
        return false;
      if (!values.emplace(bucket, number).second) return false;  // "4" and "04"
    }
    out = values;
    return true;
  }

 private:
  const ConfigRange& range_;
  const YamlNode& node_;
};

std::string AllowedFor(const ConfigField& field) {
  std::string allowed = field.range.Describe();
  const ConfigMember& member = field.member;
  if (std::holds_alternative<bool& (*)(Config&)>(member) ||
      std::holds_alternative<std::optional<bool>& (*)(Config&)>(member))
    allowed = "true, false";
  if (std::holds_alternative<std::vector<int>& (*)(Config&)>(member))
    allowed = "an ascending list of " + allowed;
  if (std::holds_alternative<std::map<int, int>& (*)(Config&)>(member))
    allowed = "a mapping of batch sizes to " + allowed;
  return field.nullable ? allowed + ", null" : allowed;
}

// What the value of a list or map shows in an error: its elements, not "a list".
std::string ShowValue(const YamlNode& node) {
  const auto show = [](const YamlNode& item) { return item.Show(); };
  std::vector<std::string> parts;
  for (const YamlNode& item : node.items) parts.push_back(show(item));
  for (const auto& [key, value] : node.entries) parts.push_back(ShowText(key) + ": " + show(value));
  const std::string text = ShowText(absl::StrJoin(parts, ", "));
  if (node.kind == YamlNode::kList) return "[" + text + "]";
  if (node.kind == YamlNode::kMap) return "{" + text + "}";
  return node.Show();
}

// Plain where YAML reads the same text back as a string, else quoted.
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
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      quoted += std::string("\\") + c;
    else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f)
      quoted += absl::StrFormat("\\x%02x", static_cast<unsigned char>(c));
    else
      quoted += c;
  }
  return quoted + "\"";
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
  return value.empty() ? "null" : "[" + absl::StrJoin(value, ", ") + "]";
}
std::string ShowMember(const std::map<int, int>& value, bool) {
  return value.empty() ? "null" : "{" + absl::StrJoin(value, ", ", absl::PairFormatter(": ")) + "}";
}

}  // namespace

std::string ConfigRange::Describe() const {
  switch (kind) {
    case kNumber:
      return absl::StrFormat("%.10g..%.10g", low, high);
    case kChoice:
      return std::string(choices);
    case kAddress:
      return "host:port, unix:path";
    case kAny:
      break;
  }
  return "text";
}

absl::Status SetField(const ConfigField& field, const YamlNode& value, Config& config) {
  const bool done = std::visit(
      [&](auto member) {
        auto& out = member(config);
        if (value.kind != YamlNode::kNull) return ValueReader(field.range, value).Read(out);
        if (field.nullable) out = {};
        return field.nullable;
      },
      field.member);
  if (done) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s, allowed %s", ShowValue(value), AllowedFor(field)));
}

std::string ShowField(const ConfigField& field, const Config& config) {
  Config copy = config;  // members are reached through a mutable Config
  return std::visit([&](auto member) { return ShowMember(member(copy), field.nullable); }, field.member);
}

}  // namespace foredraft
