#include "config/yaml_text.h"

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/visible_text.h"
#include "yaml-cpp/eventhandler.h"

namespace foredraft {
namespace {

constexpr size_t kMaxYamlBytes = size_t{1} << 20;
constexpr int kMaxDepth = 32;
constexpr int kMaxNodes = 10'000;

// Visits a document as if its aliases were expanded. Aliases share nodes, so the document in memory is small
// however much it expands to; an alias inside its own anchor is a cycle, which kMaxDepth ends.
class TreeCheck {
 public:
  explicit TreeCheck(const std::string& file) : file_(file) {}

  // `prefix` is the path of the mapping around `node` followed by a dot, or empty.
  absl::Status Visit(const YAML::Node& node, const std::string& prefix, int depth) {
    if (++node_count_ > kMaxNodes) {
      return Refuse(node, absl::StrFormat("more than %d values, aliases expanded", kMaxNodes));
    }
    if (!node.IsMap() && !node.IsSequence()) return absl::OkStatus();
    if (depth == kMaxDepth) return Refuse(node, absl::StrFormat("nested deeper than %d", kMaxDepth));
    std::set<std::string> keys;
    for (const auto& item : node) {
      if (node.IsSequence()) {
        RETURN_IF_ERROR(Visit(item, prefix, depth + 1));
        continue;
      }
      if (!item.first.IsScalar()) {
        return Refuse(item.first, ShowYaml(item.first) + " as a key, allowed names");
      }
      const std::string& key = item.first.Scalar();
      const std::string path = prefix + key;
      if (!keys.insert(key).second) return Refuse(item.first, ShowKeyPath(path) + ": given twice");
      RETURN_IF_ERROR(Visit(item.second, path + ".", depth + 1));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Refuse(const YAML::Node& node, const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_, ":", LineOf(node), ": ", what));
  }

  const std::string& file_;
  int node_count_ = 0;
};

// Keeps the mark of the document that starts and ignores its content.
class DocumentStart : public YAML::EventHandler {
 public:
  const YAML::Mark& mark() const { return mark_; }

  void OnDocumentStart(const YAML::Mark& mark) override { mark_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
  }
  void OnMapEnd() override {}

 private:
  YAML::Mark mark_;
};

// Where the second document of `text` starts, if it has one. YAML::LoadAll would tell, but it never returns
// when a document starts with a token that yaml-cpp does not consume, such as a comma: every call yields one
// more document from the same place.
std::optional<YAML::Mark> SecondDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStart start;
  if (!parser.HandleNextDocument(start) || !parser.HandleNextDocument(start)) return std::nullopt;
  return start.mark();
}

}  // namespace

int LineOf(const YAML::Node& node) { return node.Mark().line + 1; }

bool IsQuoted(const YAML::Node& node) {
  return node.Tag() == "!" || node.Tag().ends_with(":str");  // a plain scalar has the tag "?"
}

std::string ShowYaml(const YAML::Node& node) {
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a mapping";
  if (!node.IsScalar()) return "null";
  const std::string text = ShowText(node.Scalar());
  return IsQuoted(node) ? absl::StrCat("\"", text, "\"") : text;
}

std::string ShowText(std::string_view text) {
  std::string shown = ShortText(text, 80);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return shown;
}

std::string ShowKeyPath(std::string_view path) {
  constexpr size_t kLongest = 200;
  const bool is_path = !path.empty() && path.size() <= kLongest && !absl::ascii_isdigit(path.front()) &&
                       std::all_of(path.begin(), path.end(), [](unsigned char c) {
                         return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
                       });
  return is_path ? ShowText(path) : "a text that is no key";
}

absl::StatusOr<YAML::Node> ParseYaml(const std::string& text, const std::string& file) {
  const auto refuse = [&](int line, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrFormat("%s:%d: %s", file, line, what));
  };
  if (text.size() > kMaxYamlBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: larger than %d bytes", file, kMaxYamlBytes));
  }
  try {
    if (const std::optional<YAML::Mark> second = SecondDocument(text)) {
      return refuse(second->line + 1, "a second document, allowed one");
    }
    const YAML::Node document = YAML::Load(text);
    RETURN_IF_ERROR(TreeCheck(file).Visit(document, "", 0));
    return document;
  } catch (const YAML::Exception& error) {
    // Some of yaml-cpp's messages quote a word of the text after a colon; they are cut there.
    return refuse(error.mark.line + 1,
                  absl::StrCat("not YAML: ", ShowText(error.msg.substr(0, error.msg.find(": ")))));
  } catch (const std::exception& error) {
    return refuse(1, absl::StrCat("not YAML: ", ShowText(error.what())));
  }
}

}  // namespace foredraft
