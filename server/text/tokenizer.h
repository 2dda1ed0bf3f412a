#pragma once

// Text to token ids and back: byte-level BPE as described by a Hugging Face tokenizer.json, with the same ids
// as the Hugging Face tokenizers library; or by a tiktoken.model, with the same ids as tiktoken.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "server/text/added_tokens.h"
#include "server/text/bpe.h"
#include "server/text/chat_templates.h"
#include "server/text/split_regex.h"

namespace foredraft {

struct TokenizerJson;
struct TokenizerConfigJson;

struct EncodeOptions {
  // True: added tokens that the text spells out ("<｜Assistant｜>", "</think>") become those tokens.
  bool parse_special = false;
  // Puts BOS in front if the checkpoint's tokenizer does (adds_bos).
  bool add_bos = true;
};

// The file of a model's directory that has its vocabulary: tiktoken.model where there is no tokenizer.json.
std::string TokenizerFileOf(const std::string& directory);

// Immutable; thread-safe.
class Tokenizer {
 public:
  // Reads tokenizer.json, or a file named tiktoken.model, and tokenizer_config.json next to it where that
  // exists. The chat template is that of chat_template.jinja, else chat_template.json, else
  // tokenizer_config.json.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  // Load from the files' texts; an empty `tokenizer_config_json` = none.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(std::string_view tokenizer_json,
                                                          std::string_view tokenizer_config_json);

  // Load of a tiktoken.model from the files' texts.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTiktoken(std::string_view tiktoken_model,
                                                                  std::string_view tokenizer_config_json);

  // INVALID_ARGUMENT for text that is not UTF-8, is over 1 GiB, has a byte that a vocabulary of less than 256
  // tokens lacks, or exceeds the match limits of the file's regexes; the caller prefixes the name of its
  // field.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids unknown to the tokenizer become nothing.
  std::string Decode(std::span<const int32_t> ids, bool skip_special = true) const;

  // The bytes of token `id`; empty for an id unknown to the tokenizer.
  std::string_view TokenBytes(int32_t id) const;
  // Whether the file says that the token is special: markup, skipped in decoded text. R1's <think> is not
  // special.
  bool IsSpecial(int32_t id) const;
  std::optional<int32_t> AddedTokenId(std::string_view content) const;
  // Every added token, by content.
  const absl::flat_hash_map<std::string, int32_t>& added_ids() const { return added_ids_; }
  // The added tokens that `text` spells out and the plain text between them, in order: views of `text`.
  std::vector<TextSegment> SplitAtAddedTokens(std::string_view text) const { return added_tokens_.Cut(text); }

  int32_t vocab_size() const { return static_cast<int32_t>(token_bytes_.size()); }  // highest id + 1
  int32_t bos_id() const { return bos_id_; }                                        // -1 = none
  int32_t eos_id() const { return eos_id_; }                                        // -1 = none named
  bool adds_bos() const { return adds_bos_; }
  // Jinja source; nothing if the checkpoint has none.
  const std::optional<std::string>& chat_template() const { return templates_.chat; }
  // The template for requests with tools, where a checkpoint has one of its own.
  const std::optional<std::string>& tool_template() const { return templates_.tool_use; }

 private:
  Tokenizer(const TokenizerJson& file, std::vector<SplitRegex> splits, Bpe bpe, std::string missing_bytes);
  // Makes the tokenizer of a vocabulary that was read from the file `name`.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Make(std::string_view name, const TokenizerJson& file,
                                                         std::string_view tokenizer_config_json);
  absl::Status ApplyConfig(const TokenizerConfigJson& config);

  // The pieces of `text` (valid UTF-8) that merges never cross, in order: views of `text` that cover all of
  // it.
  absl::StatusOr<std::vector<std::string_view>> Cut(std::string_view text, RegexScratch& scratch) const;

  std::vector<SplitRegex> splits_;  // applied in order, each inside the pieces of the ones before it
  Bpe bpe_;
  std::string missing_bytes_;  // bytes without a token; empty unless the vocabulary is tiny
  AddedTokens added_tokens_;
  absl::flat_hash_map<std::string, int32_t> added_ids_;  // by content
  std::vector<std::string> token_bytes_;                 // [vocab_size]
  std::vector<bool> special_;                            // [vocab_size]
  int32_t bos_id_ = -1;
  int32_t eos_id_ = -1;
  bool adds_bos_ = false;
  ChatTemplates templates_;
};

}  // namespace foredraft
