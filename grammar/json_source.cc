#include "grammar/json_source.h"

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

// Builds the tree from the parser's events and stops at the first one that it does not accept.
class TreeBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(JsonValue& root, int max_depth) : root_(root), max_depth_(max_depth) {}
  const std::string& refusal() const { return refusal_; }

  bool null() override { return Add({}); }
  bool boolean(bool value) override { return Add({.kind = JsonValue::kBoolean, .boolean = value}); }
  bool number_integer(number_integer_t value) override { return AddNumber(absl::StrCat(value)); }
  bool number_unsigned(number_unsigned_t value) override { return AddNumber(absl::StrCat(value)); }
  bool number_float(number_float_t, const string_t& text) override { return AddNumber(text); }
  bool string(string_t& value) override {
    return Add({.kind = JsonValue::kString, .text = std::move(value)});
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(JsonValue::kObject); }
  bool start_array(size_t) override { return Open(JsonValue::kArray); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second) {
      refusal_ =
          absl::StrFormat("%s: key %s given twice, allowed once", JsonPointer(*open_.back()), QuoteJson(key));
      return false;
    }
    open_.back()->keys.push_back(key);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    refusal_ = absl::StrFormat("not JSON at byte %d, allowed JSON text", position);
    return false;
  }

 private:
  JsonValue* Put(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    value.parent = open_.back();
    open_.back()->items.push_back(std::move(value));
    return &open_.back()->items.back();
  }
  bool Add(JsonValue value) {
    Put(std::move(value));
    return true;
  }
  bool AddNumber(std::string text) { return Add({.kind = JsonValue::kNumber, .text = std::move(text)}); }
  bool Open(JsonValue::Kind kind) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      refusal_ = absl::StrFormat("nested deeper than constraints.max_depth = %d", max_depth_);
      return false;
    }
    // An open value does not move: its parent gets no other child before it is closed.
    open_.push_back(Put({.kind = kind}));
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  JsonValue& root_;
  const int max_depth_;
  std::vector<JsonValue*> open_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the open values
  std::string refusal_;
};

// Whether the value is among its parent's items.
bool IsItemOfParent(const JsonValue& value) {
  const std::vector<JsonValue>& items = value.parent->items;
  const std::less<const JsonValue*> less;
  return !items.empty() && !less(&value, &items.front()) && !less(&items.back(), &value);
}

}  // namespace

// Elements move while their siblings are added, so the parents are set afterwards.
void SetParents(JsonValue& value) {
  for (JsonValue& item : value.items) {
    item.parent = &value;
    SetParents(item);
  }
}

const JsonValue* JsonValue::Find(std::string_view key) const {
  if (kind != kObject) return nullptr;
  const auto place = std::find(keys.begin(), keys.end(), key);
  return place == keys.end() ? nullptr : &items[place - keys.begin()];
}

absl::StatusOr<std::unique_ptr<const JsonValue>> ParseJsonSource(std::string_view text, int max_depth) {
  // The parser ends the text at a zero byte.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrFormat("not JSON at byte %d, allowed JSON text", nul));
  }
  auto root = std::make_unique<JsonValue>();
  TreeBuilder builder(*root, max_depth);
  if (!nlohmann::json::sax_parse(text, &builder)) return absl::InvalidArgumentError(builder.refusal());
  SetParents(*root);
  return root;
}

std::string JsonPointer(const JsonValue& value) {
  for (const JsonValue* at = &value; at->parent != nullptr; at = at->parent) {
    if (!IsItemOfParent(*at)) return JsonPointer(*at->parent);
  }
  if (value.parent == nullptr) return "#";
  const size_t index = &value - value.parent->items.data();
  std::string name = absl::StrCat(index);
  if (value.parent->is_object()) {
    name = absl::StrReplaceAll(value.parent->keys[index], {{"~", "~0"}, {"/", "~1"}});
  }
  return absl::StrCat(JsonPointer(*value.parent), "/", name);
}

std::string QuoteJson(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    constexpr std::string_view kSpecial = "\"\\\b\f\n\r\t";
    constexpr std::string_view kLetters = "\"\\bfnrt";
    const size_t special = kSpecial.find(c);
    if (special != std::string_view::npos) {
      out += {'\\', kLetters[special]};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += absl::StrFormat("\\u%04x", c);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace foredraft
