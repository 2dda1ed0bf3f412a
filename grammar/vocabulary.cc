#include "grammar/vocabulary.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "grammar/char_set.h"

namespace foredraft {
namespace {

// The number of characters of a token that is text without `excluded`, counting an unfinished one at the end;
// -1 for any other token.
int CountTextChars(std::string_view bytes, const ByteClass& excluded) {
  int state = kUtf8Start;
  int count = 0;
  for (const char c : bytes) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (excluded.Has(byte)) return -1;
    count += state == kUtf8Start;
    state = NextUtf8State(state, byte);
    if (state < 0) return -1;
  }
  return count;
}

void SetBit(std::vector<uint32_t>& words, int32_t id) { words[id / 32] |= uint32_t{1} << (id % 32); }

}  // namespace

TokenTrie::TokenTrie(std::span<const std::pair<std::string_view, int32_t>> tokens) {
  std::vector<uint32_t> path;  // nodes of the previous token
  std::string_view previous;
  const auto close = [&](size_t keep) {
    for (; path.size() > keep; path.pop_back()) {
      nodes_[path.back()].size = static_cast<uint32_t>(nodes_.size()) - path.back();
    }
  };
  for (const auto& [bytes, id] : tokens) {
    const size_t shared =
        std::mismatch(bytes.begin(), bytes.end(), previous.begin(), previous.end()).first - bytes.begin();
    close(shared);
    for (size_t i = shared; i < bytes.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({static_cast<uint8_t>(bytes[i]), kNoToken, static_cast<uint32_t>(i), 1});
    }
    nodes_[path.back()].token = static_cast<uint32_t>(id);
    previous = bytes;
  }
  close(0);
  nodes_.shrink_to_fit();
}

absl::StatusOr<std::shared_ptr<const Vocabulary>> Vocabulary::Create(VocabularySource source) {
  const int32_t size = static_cast<int32_t>(source.ordinary.size());
  const auto is_outside = [&](int32_t id) { return id < 0 || id >= size; };
  std::erase_if(source.end_ids, is_outside);
  std::erase_if(source.added,
                [&](const auto& added) { return is_outside(added.second) || added.first.empty(); });
  // An end token or an added one never matches bytes.
  for (const int32_t id : source.end_ids) source.ordinary[id].clear();
  for (const auto& [content, id] : source.added) source.ordinary[id].clear();
  std::shared_ptr<Vocabulary> vocabulary(new Vocabulary(std::move(source)));
  RETURN_IF_ERROR(vocabulary->Sort());
  vocabulary->trie_ = TokenTrie(vocabulary->sorted_);
  ByteClass outside_json = ByteClass::Range(0, 0x1F);
  outside_json.Add('"');
  outside_json.Add('\\');
  vocabulary->AddSlice(outside_json, true);
  vocabulary->AddSlice(ByteClass::Of('<'), false);
  vocabulary->AddSlice(ByteClass(), false);
  return vocabulary;
}

absl::Status Vocabulary::Sort() {
  if (source_.ordinary.size() >= TokenTrie::kNoToken) {
    return absl::InvalidArgumentError(absl::StrFormat("vocabulary: %d ids, allowed at most %d",
                                                      source_.ordinary.size(), TokenTrie::kNoToken - 1));
  }
  for (int32_t id = 0; id < size(); ++id) {
    if (IsOrdinary(id)) sorted_.emplace_back(bytes(id), id);
  }
  ordinary_words_ = Words(sorted_);
  std::sort(sorted_.begin(), sorted_.end());
  size_t kept = 0;
  size_t node_bound = 0;
  for (const auto& token : sorted_) {
    if (kept > 0 && sorted_[kept - 1].first == token.first) {
      twins_.emplace_back(sorted_[kept - 1].second, token.second);
      continue;
    }
    sorted_[kept++] = token;
    node_bound += token.first.size();
    longest_token_ = std::max(longest_token_, static_cast<int32_t>(token.first.size()));
    if (token.first.size() == 1) single_bytes_.Add(static_cast<uint8_t>(token.first[0]));
  }
  sorted_.resize(kept);
  if (node_bound > TokenTrie::kMaxNodes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "vocabulary: %d bytes in all tokens, allowed at most %d", node_bound, TokenTrie::kMaxNodes));
  }
  return absl::OkStatus();
}

std::optional<int32_t> Vocabulary::Find(std::string_view bytes) const {
  for (const auto& [content, id] : source_.added) {
    if (content == bytes) return id;
  }
  const auto place =
      std::lower_bound(sorted_.begin(), sorted_.end(), bytes,
                       [](const auto& token, std::string_view wanted) { return token.first < wanted; });
  if (place == sorted_.end() || place->first != bytes) return std::nullopt;
  return place->second;
}

bool Vocabulary::IsToken(int32_t id) const {
  if (id < 0 || id >= size()) return false;
  const auto is_id = [&](const auto& added) { return added.second == id; };
  return IsOrdinary(id) || std::any_of(source_.added.begin(), source_.added.end(), is_id) ||
         std::find(source_.end_ids.begin(), source_.end_ids.end(), id) != source_.end_ids.end();
}

void Vocabulary::AddSlice(const ByteClass& excluded, bool has_parts) {
  Sorted inside, outside;
  std::vector<Sorted> parts(TextSlice::kPartCount);
  for (const auto& token : sorted_) {
    const int chars = CountTextChars(token.first, excluded);
    (chars < 0 ? outside : inside).push_back(token);
    if (chars < 0) continue;
    int part = 0;
    while (chars > TextSlice::kPartChars[part]) ++part;
    parts[part].push_back(token);
  }
  TextSlice& slice = slices_.emplace_back();
  slice.excluded = excluded;
  slice.trie = TokenTrie(inside);
  slice.words = Words(inside);
  slice.rest = TokenTrie(outside);
  if (!has_parts) return;
  for (const Sorted& part : parts) slice.parts.push_back({TokenTrie(part), Words(part)});
}

std::vector<uint32_t> Vocabulary::Words(const Sorted& tokens) const {
  std::vector<uint32_t> words(word_count(), 0);
  for (const auto& token : tokens) SetBit(words, token.second);
  return words;
}

}  // namespace foredraft
