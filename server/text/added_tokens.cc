#include "server/text/added_tokens.h"

namespace foredraft {
namespace {

uint64_t Edge(int32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
}

}  // namespace

void AddedTokens::Trie::Add(std::string_view content, int32_t id) {
  int32_t node = 0;
  for (const char byte : content) {
    const auto [child, is_new] = children.try_emplace(Edge(node, byte), static_cast<int32_t>(ids.size()));
    if (is_new) ids.push_back(-1);
    node = child->second;
  }
  ids[node] = id;
}

TextSegment AddedTokens::Trie::LongestAt(std::string_view text) const {
  TextSegment longest = {"", -1};
  int32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto child = children.find(Edge(node, text[i]));
    if (child == children.end()) break;
    node = child->second;
    if (ids[node] >= 0) longest = {text.substr(0, i + 1), ids[node]};
  }
  return longest;
}

void AddedTokens::Trie::Cut(std::string_view text, std::vector<TextSegment>& segments) const {
  size_t plain = 0;  // where the plain text before `at` begins
  size_t at = 0;
  while (at < text.size()) {
    const TextSegment token = LongestAt(text.substr(at));
    if (token.text.empty()) {
      ++at;
      continue;
    }
    if (at > plain) segments.push_back({text.substr(plain, at - plain), -1});
    segments.push_back(token);
    at += token.text.size();
    plain = at;
  }
  if (plain < text.size()) segments.push_back({text.substr(plain), -1});
}

void AddedTokens::Add(std::string_view content, int32_t id, bool normalized) {
  (normalized ? normalized_ : raw_).Add(content, id);
}

std::vector<TextSegment> AddedTokens::Cut(std::string_view text) const {
  std::vector<TextSegment> coarse;
  raw_.Cut(text, coarse);
  std::vector<TextSegment> segments;
  for (const TextSegment& segment : coarse) {
    if (segment.added_id >= 0) {
      segments.push_back(segment);
    } else {
      normalized_.Cut(segment.text, segments);
    }
  }
  return segments;
}

}  // namespace foredraft
