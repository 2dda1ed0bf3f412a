#pragma once

// The tokens of a model as bytes, sorted into tries that a mask walks. One per model, made when it is loaded.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "grammar/byte_class.h"

namespace foredraft {

struct VocabularySource {
  // [ids]: the bytes of each ordinary token; empty for an added token and for an id without a token. An added
  // token never matches bytes, just as text of a chat never becomes markup.
  std::vector<std::string> ordinary;
  std::vector<std::pair<std::string, int32_t>> added;  // content and id
  std::vector<int32_t> end_ids;                        // EOS and the chat format's stop ids
};

// Tokens in depth-first order, one node per byte: a walk skips the subtree of a byte that does not match.
class TokenTrie {
 public:
  static constexpr uint32_t kNoToken = (1 << 24) - 1;
  static constexpr size_t kMaxTokenBytes = 1023;
  static constexpr uint32_t kMaxNodes = (1 << 22) - 1;
  struct Node {
    uint32_t byte : 8;
    uint32_t token : 24;  // that ends here, or kNoToken
    uint32_t depth : 10;  // bytes before this one
    uint32_t size : 22;   // nodes of its subtree, itself included
  };

  TokenTrie() = default;
  // `tokens`: bytes and id, sorted by bytes, all different and of 1 to kMaxTokenBytes bytes.
  explicit TokenTrie(std::span<const std::pair<std::string_view, int32_t>> tokens);
  std::span<const Node> nodes() const { return nodes_; }

 private:
  std::vector<Node> nodes_;
};

// Tokens whose text is of one kind: a prefix of valid UTF-8, without some ASCII characters. A mask takes all
// of them at once where the grammar allows any such text (grammar/mask_maker.h).
struct TextSlice {
  // Parts by length: tokens of 1 to 4 characters, 5 to 8, 9 to 16, 17 to 32, and more.
  static constexpr int kPartCount = 5;
  static constexpr int kPartChars[kPartCount] = {4, 8, 16, 32, 1 << 30};
  struct Part {
    TokenTrie trie;
    std::vector<uint32_t> words;
  };

  ByteClass excluded;           // ASCII characters that the text does not have
  std::vector<Part> parts;      // kPartCount, or none if the slice is only taken as a whole
  TokenTrie trie;               // all tokens of the slice
  std::vector<uint32_t> words;  // all tokens of the slice, a bit per id
  TokenTrie rest;               // ordinary tokens outside of the slice
};

// Immutable; thread-safe.
class Vocabulary {
 public:
  // INVALID_ARGUMENT: more than 2^24 - 2 ids or too many bytes. Masks never allow tokens of more than
  // kMaxTokenBytes.
  static absl::StatusOr<std::shared_ptr<const Vocabulary>> Create(VocabularySource source);

  int32_t size() const { return static_cast<int32_t>(source_.ordinary.size()); }
  int32_t word_count() const { return (size() + 31) / 32; }
  std::string_view bytes(int32_t id) const { return source_.ordinary[id]; }
  bool IsOrdinary(int32_t id) const {
    return !bytes(id).empty() && bytes(id).size() <= TokenTrie::kMaxTokenBytes;
  }
  // The added token with this content, otherwise the ordinary token with these bytes.
  std::optional<int32_t> Find(std::string_view bytes) const;
  // Whether the id is an ordinary, added or end token.
  bool IsToken(int32_t id) const;
  const std::vector<std::pair<std::string, int32_t>>& added() const { return source_.added; }
  const std::vector<int32_t>& end_ids() const { return source_.end_ids; }
  int32_t longest_token() const { return longest_token_; }
  // Bytes that are tokens by themselves. A state that needs another byte may have no token.
  const ByteClass& single_bytes() const { return single_bytes_; }

  const TokenTrie& trie() const { return trie_; }
  // Narrowest first: text inside of a JSON string, text without '<', any text.
  const std::vector<TextSlice>& slices() const { return slices_; }
  // Pairs of ids with the same bytes: {the id that the tries have, an id that it stands for}.
  const std::vector<std::pair<int32_t, int32_t>>& twins() const { return twins_; }
  const std::vector<uint32_t>& ordinary_words() const { return ordinary_words_; }

 private:
  using Sorted = std::vector<std::pair<std::string_view, int32_t>>;
  explicit Vocabulary(VocabularySource source) : source_(std::move(source)) {}
  absl::Status Sort();
  void AddSlice(const ByteClass& excluded, bool has_parts);
  std::vector<uint32_t> Words(const Sorted& tokens) const;

  const VocabularySource source_;
  Sorted sorted_;  // one id per byte string
  int32_t longest_token_ = 1;
  ByteClass single_bytes_;
  TokenTrie trie_;
  std::vector<TextSlice> slices_;
  std::vector<std::pair<int32_t, int32_t>> twins_;
  std::vector<uint32_t> ordinary_words_;
};

}  // namespace foredraft
