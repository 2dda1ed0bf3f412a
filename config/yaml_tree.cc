#include "config/yaml_tree.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/mark.h"
#include "yaml-cpp/parser.h"

namespace foredraft {
namespace {

constexpr size_t kMaxYamlBytes = size_t{1} << 20;
constexpr size_t kMaxDepth = 32;
constexpr int kMaxNodes = 10'000;

// Thrown out of yaml-cpp's parser by the handler below, to stop it at the first fault; caught in ParseYaml.
struct Fault {
  int line;
  std::string what;
};

int CountNodes(const YamlNode& node) {
  int count = 1;
  for (const YamlNode& item : node.items) count += CountNodes(item);
  for (const auto& [key, value] : node.entries) count += CountNodes(value);
  return count;
}

// At most kMaxDepth: aliases are only placed where the whole stays within it, so the recursion is bounded.
size_t DepthOf(const YamlNode& node) {
  size_t depth = 0;
  for (const YamlNode& item : node.items) depth = std::max(depth, DepthOf(item));
  for (const auto& [key, value] : node.entries) depth = std::max(depth, DepthOf(value));
  return node.kind == YamlNode::kList || node.kind == YamlNode::kMap ? depth + 1 : depth;
}

class TreeBuilder : public YAML::EventHandler {
 public:
  YamlNode TakeRoot() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Add({.kind = YamlNode::kNull, .line = mark.line + 1}, anchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const bool quoted = tag == "!" || tag.ends_with(":str");  // "?" = plain
    Add({.kind = YamlNode::kScalar, .line = mark.line + 1, .quoted = quoted, .text = value}, anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto it = anchored_.find(anchor);
    if (it == anchored_.end()) throw Fault{mark.line + 1, "alias inside its own anchor"};
    Count(mark.line + 1, CountNodes(it->second));
    CheckDepth(mark.line + 1, open_.size() + DepthOf(it->second));
    YamlNode copy = it->second;
    copy.line = mark.line + 1;
    Place(std::move(copy));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open({.kind = YamlNode::kList, .line = mark.line + 1}, anchor);
  }
  void OnSequenceEnd() override { Close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open({.kind = YamlNode::kMap, .line = mark.line + 1}, anchor);
  }
  void OnMapEnd() override { Close(); }

 private:
  // A list or map whose end has not come.
  struct OpenNode {
    YamlNode node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;  // a map's key waits for its value
    std::string key;
    int key_line = 0;
  };

  void Count(int line, int nodes) {
    node_count_ += nodes;
    if (node_count_ > kMaxNodes)
      throw Fault{line, absl::StrFormat("more than %d values, aliases expanded", kMaxNodes)};
  }

  void CheckDepth(int line, size_t depth) {
    if (depth > kMaxDepth) throw Fault{line, absl::StrFormat("nested deeper than %d", kMaxDepth)};
  }

  void Open(YamlNode node, YAML::anchor_t anchor) {
    Count(node.line, 1);
    CheckDepth(node.line, open_.size() + 1);
    open_.push_back({std::move(node), anchor});
  }

  void Close() {
    OpenNode closed = std::move(open_.back());
    open_.pop_back();
    if (closed.anchor != 0) anchored_[closed.anchor] = closed.node;
    Place(std::move(closed.node));
  }

  void Add(YamlNode node, YAML::anchor_t anchor) {
    Count(node.line, 1);
    if (anchor != 0) anchored_[anchor] = node;
    Place(std::move(node));
  }

  void Place(YamlNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    OpenNode& parent = open_.back();
    if (parent.node.kind == YamlNode::kList) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.has_key) {
      TakeKey(parent, node);
    } else {
      node.line = parent.key_line;
      parent.node.entries.push_back({std::move(parent.key), std::move(node)});
      parent.has_key = false;
    }
  }

  void TakeKey(OpenNode& map, const YamlNode& key) {
    if (key.kind != YamlNode::kScalar) throw Fault{key.line, key.Show() + " as a key, allowed names"};
    for (const auto& [other, value] : map.node.entries)
      if (other == key.text) throw Fault{key.line, PathOf(key.text) + ": given twice"};
    map.has_key = true;
    map.key = key.text;
    map.key_line = key.line;
  }

  // "speculative_config.max_draft_len" for a key of the innermost open map.
  std::string PathOf(const std::string& key) const {
    std::string path;
    for (const OpenNode& node : open_)
      if (node.has_key) path += node.key + ".";
    return ShowText(path + key);
  }

  YamlNode root_;
  std::vector<OpenNode> open_;
  std::map<YAML::anchor_t, YamlNode> anchored_;  // finished nodes that an alias may name
  int node_count_ = 0;
};

}  // namespace

std::string YamlNode::Show() const {
  switch (kind) {
    case kNull:
      return "null";
    case kList:
      return "a list";
    case kMap:
      return "a mapping";
    case kScalar:
      break;
  }
  return quoted ? "\"" + ShowText(text) + "\"" : ShowText(text);
}

std::string ShowText(std::string_view text) {
  std::string shown(text.substr(0, 80));
  if (text.size() > 80) shown.replace(77, 3, "...");
  for (char& c : shown)
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  return shown;
}

absl::StatusOr<YamlNode> ParseYaml(const std::string& text, const std::string& file) {
  const auto refuse = [&](int line, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrFormat("%s:%d: %s", file, line, what));
  };
  if (text.size() > kMaxYamlBytes)
    return absl::InvalidArgumentError(absl::StrFormat("%s: larger than %d bytes", file, kMaxYamlBytes));
  try {
    std::istringstream in(text);
    YAML::Parser parser(in);
    TreeBuilder builder;
    if (!parser.HandleNextDocument(builder)) return YamlNode{.line = 1};
    YamlNode root = builder.TakeRoot();
    TreeBuilder more;
    if (parser.HandleNextDocument(more))
      return refuse(more.TakeRoot().line, "a second document, allowed one");
    return root;
  } catch (const Fault& fault) {
    return refuse(fault.line, fault.what);
  } catch (const YAML::Exception& error) {
    return refuse(error.mark.line + 1, "not YAML: " + ShowText(error.msg));
  } catch (const std::exception& error) {
    return refuse(1, "not YAML: " + ShowText(error.what()));
  }
}

}  // namespace foredraft
