#include "config/json_text.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "base/out_of_memory.h"
#include "base/visible_text.h"

namespace foredraft {
namespace {

// Builds a document from the parser's events, in time linear in the text, and stops at the first thing that
// JSON allows but this reader does not. (The parser's own filter looks at all siblings after every value.)
class JsonBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonBuilder(const JsonLimits& limits) : limits_(limits) {}
  ~JsonBuilder() override { ReleaseJson(root_); }

  nlohmann::json& root() { return root_; }
  const std::string& refusal() const { return refusal_; }
  bool is_list_too_long() const { return is_list_too_long_; }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Refuse("binary"); }
  bool start_object(size_t) override { return Open(nlohmann::json::object()); }
  bool start_array(size_t) override { return Open(nlohmann::json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& key) override {
    const auto [member, is_new] = open_.back()->emplace(key, nullptr);
    if (!is_new) return Refuse(absl::StrFormat("key %s given twice", ShowJson(key)));
    member_ = &member.value();
    if (open_.size() == 1) in_limited_ = key == limits_.list_key;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // nlohmann's message ends with what was read last, of any length and of any bytes.
    constexpr size_t kLongest = 300;
    const std::string_view what = error.what();
    return Refuse("not JSON: " + ShortText(VisibleText(what.substr(0, kLongest + 1)), kLongest));
  }

 private:
  // Puts a value where the parser is; returns its address.
  template <class Value>
  nlohmann::json* Put(Value&& value) {
    nlohmann::json* place = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      open_.back()->push_back(nullptr);
      place = &open_.back()->back();
    } else if (!open_.empty()) {
      place = member_;
    }
    *place = std::forward<Value>(value);
    return place;
  }
  template <class Value>
  bool Add(Value&& value) {
    if (!Count()) return false;
    Put(std::forward<Value>(value));
    return true;
  }
  bool Open(nlohmann::json value) {
    if (open_.size() >= kMaxJsonDepth) return Refuse(absl::StrFormat("nested deeper than %d", kMaxJsonDepth));
    if (!Count()) return false;
    open_.push_back(Put(std::move(value)));
    return true;
  }
  // Counts the next value. False: it is one too many.
  bool Count() {
    if (++values_ > limits_.max_values) {
      return Refuse(absl::StrFormat("more than %d values", limits_.max_values));
    }
    if (!in_limited_ || open_.size() < 2 || !open_.back()->is_array()) return true;
    if (static_cast<int64_t>(open_.back()->size()) < limits_.max_list) return true;
    is_list_too_long_ = true;
    return Refuse(absl::StrFormat("more than %d values in a list, allowed at most %d", limits_.max_list,
                                  limits_.max_list));
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Refuse(std::string reason) {
    refusal_ = std::move(reason);
    return false;
  }

  const JsonLimits limits_;
  int64_t values_ = 0;
  bool in_limited_ = false;  // in the value of limits_.list_key
  bool is_list_too_long_ = false;
  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;  // objects and arrays around the parser; the last one grows
  nlohmann::json* member_ = nullptr;   // the value of the last key
  std::string refusal_;
};

// How deep the lists and objects of a JSON text are nested.
int NestingOf(std::string_view json) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t at = 0; at < json.size(); ++at) {
    const char byte = json[at];
    if (in_string && byte == '\\') ++at;
    if (byte == '"') in_string = !in_string;
    if (in_string) continue;
    if (byte == '[' || byte == '{') deepest = std::max(deepest, ++depth);
    if (byte == ']' || byte == '}') --depth;
  }
  return deepest;
}

}  // namespace

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

bool IsJson(std::string_view text) {
  return text.find('\0') == std::string_view::npos && nlohmann::json::accept(text) &&
         NestingOf(text) <= kMaxJsonDepth;
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& file, int64_t max_values) {
  return ParseJson(text, file, JsonLimits{.max_values = max_values, .list_key = {}});
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, const std::string& file,
                                         const JsonLimits& limits) {
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: not JSON: byte %d is 0", file, nul));
  }
  JsonBuilder builder(limits);
  bool whole = false;
  {
    const MayLackMemory scope;
    whole = nlohmann::json::sax_parse(text, &builder);
  }
  if (whole) return std::move(builder.root());
  const std::string where = builder.is_list_too_long() ? std::string(limits.list_key) : file;
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s", where, builder.refusal()));
}

std::string ShowJson(const nlohmann::json& value) {
  return ShortText(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 80);
}

std::string ShowKey(const std::string& key) {
  constexpr size_t kLongest = 80;
  const bool is_plain = std::all_of(key.begin(), key.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
  });
  return is_plain && key.size() <= kLongest ? key : ShowJson(key);
}

}  // namespace foredraft
