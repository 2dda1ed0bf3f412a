#include "server/text/tokenizer.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/text/byte_alphabet.h"
#include "server/text/tiktoken_file.h"
#include "server/text/tokenizer_json.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr int64_t kMaxFileBytes = int64_t{256} << 20;  // ten times the largest tokenizer.json known

constexpr int64_t kMaxTiktokenBytes = int64_t{32} << 20;  // ten times the largest tiktoken.model known
constexpr char kJsonFile[] = "tokenizer.json", kConfigFile[] = "tokenizer_config.json";

using IdsByContent = absl::flat_hash_map<std::string_view, int32_t>;

// Text of an optional file; empty if there is none.
absl::StatusOr<std::string> ReadFileIfPresent(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::string();
  return ReadFileText(path.string(), kMaxFileBytes);
}

absl::Status Prefix(std::string_view where, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrFormat("%s: %s", where, status.message()));
}

absl::StatusOr<std::vector<SplitRegex>> MakeSplits(const TokenizerJson& file) {
  std::vector<SplitRegex> splits;
  for (const TokenizerJson::Split& split : file.splits) {
    absl::StatusOr<SplitRegex> regex =
        split.literal ? SplitRegex::CompileLiteral(split.pattern) : SplitRegex::Compile(split.pattern);
    if (!regex.ok()) return Prefix("pre_tokenizer: pattern", regex.status());
    splits.push_back(*std::move(regex));
  }
  return splits;
}

// A vocabulary with room for every byte has to have a token for each. For a smaller one, `missing_bytes` gets
// the bytes without a token.
absl::StatusOr<Bpe> MakeBpe(const TokenizerJson& file, std::string& missing_bytes) {
  IdsByContent ids;
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    if (!file.tokens[id].empty()) ids.emplace(file.tokens[id], static_cast<int32_t>(id));
  }
  std::array<int32_t, 256> byte_ids;
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    AppendUtf8(ByteAlphabet()[byte], letter);
    const auto found = ids.find(letter);
    if (found == ids.end() && file.tokens.size() >= 256) {
      return absl::InvalidArgumentError(
          absl::StrFormat("model.vocab: no token \"%s\" for byte 0x%02X", letter, byte));
    }
    if (found == ids.end()) missing_bytes.push_back(static_cast<char>(byte));
    byte_ids[byte] = found == ids.end() ? -1 : found->second;
  }

  Bpe bpe(byte_ids);
  if (file.rank_count > 0) AddTiktokenMerges(file, bpe);
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    const auto& [left, right] = file.merges[rank];
    int32_t parts[3];
    int part = 0;
    for (const std::string& content : {left, right, left + right}) {
      const auto found = ids.find(content);
      if (found == ids.end()) {
        return absl::InvalidArgumentError(
            absl::StrFormat("model.merges[%d]: \"%s\" is not in model.vocab", rank, content));
      }
      parts[part++] = found->second;
    }
    bpe.AddMerge(parts[0], parts[1], {static_cast<int32_t>(rank), parts[2]});
  }
  if (file.ignore_merges) {
    for (const auto& [content, id] : ids) {
      if (auto bytes = BytesOfToken(content)) bpe.AddWholePiece(*std::move(bytes), id);
    }
  }
  return bpe;
}

}  // namespace

std::string TokenizerFileOf(const std::string& directory) {
  const std::filesystem::path folder = directory;
  std::error_code error;
  const bool has_json = std::filesystem::exists(folder / kJsonFile, error);
  const bool has_ranks = std::filesystem::exists(folder / kTiktokenFile, error);
  return (folder / (!has_json && has_ranks ? kTiktokenFile : kJsonFile)).string();
}

Tokenizer::Tokenizer(const TokenizerJson& file, std::vector<SplitRegex> splits, Bpe bpe,
                     std::string missing_bytes)
    : splits_(std::move(splits)),
      bpe_(std::move(bpe)),
      missing_bytes_(std::move(missing_bytes)),
      token_bytes_(file.tokens.size()),
      special_(file.tokens.size(), false),
      bos_id_(file.bos_id),
      adds_bos_(file.bos_id >= 0) {
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    // A token with a character outside the byte alphabet stands for its own bytes, as in Hugging Face's
    // ByteLevel decoder.
    token_bytes_[id] = BytesOfToken(file.tokens[id]).value_or(file.tokens[id]);
  }
  for (const TokenizerJson::AddedToken& token : file.added_tokens) {
    added_tokens_.Add(token.content, token.id, token.normalized);
    added_ids_.emplace(token.content, token.id);
    special_[token.id] = token.special;
  }
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Make(std::string_view name, const TokenizerJson& file,
                                                           std::string_view tokenizer_config_json) {
  absl::StatusOr<std::vector<SplitRegex>> splits = MakeSplits(file);
  if (!splits.ok()) return Prefix(name, splits.status());
  std::string missing_bytes;
  absl::StatusOr<Bpe> bpe = MakeBpe(file, missing_bytes);
  if (!bpe.ok()) return Prefix(name, bpe.status());
  std::unique_ptr<Tokenizer> tokenizer(
      new Tokenizer(file, *std::move(splits), *std::move(bpe), std::move(missing_bytes)));

  if (!tokenizer_config_json.empty()) {
    const absl::StatusOr<TokenizerConfigJson> config = ReadTokenizerConfigJson(tokenizer_config_json);
    const absl::Status status = config.ok() ? tokenizer->ApplyConfig(*config) : config.status();
    if (!status.ok()) return Prefix(kConfigFile, status);
  }
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(std::string_view tokenizer_json,
                                                            std::string_view tokenizer_config_json) {
  const absl::StatusOr<TokenizerJson> file = ReadTokenizerJson(tokenizer_json);
  if (!file.ok()) return Prefix(kJsonFile, file.status());
  return Make(kJsonFile, *file, tokenizer_config_json);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::ParseTiktoken(std::string_view tiktoken_model,
                                                                    std::string_view tokenizer_config_json) {
  absl::StatusOr<std::vector<TokenizerJson::AddedToken>> named = std::vector<TokenizerJson::AddedToken>();
  if (!tokenizer_config_json.empty()) named = ReadAddedTokensDecoder(tokenizer_config_json);
  if (!named.ok()) return Prefix(kConfigFile, named.status());
  const absl::StatusOr<TokenizerJson> file = ReadTiktokenFile(tiktoken_model, *std::move(named));
  if (!file.ok()) return Prefix(kTiktokenFile, file.status());
  return Make(kTiktokenFile, *file, tokenizer_config_json);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const bool is_tiktoken = std::filesystem::path(path).filename() == kTiktokenFile;
  ASSIGN_OR_RETURN(const std::string vocabulary,
                   ReadFileText(path, is_tiktoken ? kMaxTiktokenBytes : kMaxFileBytes));
  ASSIGN_OR_RETURN(const std::string config, ReadFileIfPresent(folder / kConfigFile));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      is_tiktoken ? ParseTiktoken(vocabulary, config) : Parse(vocabulary, config);
  if (!tokenizer.ok()) return Prefix(folder.string(), tokenizer.status());
  // Newer checkpoints keep the template in a file of its own, which takes precedence.
  ASSIGN_OR_RETURN(std::string chat_template, ReadFileIfPresent(folder / "chat_template.jinja"));
  if (!chat_template.empty()) {
    (*tokenizer)->templates_ = {.chat = std::move(chat_template)};
    return tokenizer;
  }
  ASSIGN_OR_RETURN(const std::string templates, ReadFileIfPresent(folder / "chat_template.json"));
  if (templates.empty()) return tokenizer;
  absl::StatusOr<ChatTemplates> read = ReadChatTemplateJson(templates);
  if (!read.ok()) return Prefix((folder / "chat_template.json").string(), read.status());
  if (read->chat.has_value()) (*tokenizer)->templates_ = *std::move(read);
  return tokenizer;
}

absl::Status Tokenizer::ApplyConfig(const TokenizerConfigJson& config) {
  const auto find = [&](std::string_view field, const std::string& content, int32_t& id) -> absl::Status {
    if (content.empty()) return absl::OkStatus();
    const std::optional<int32_t> found = AddedTokenId(content);
    if (!found.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: \"%s\", allowed an added token of tokenizer.json", field, content));
    }
    id = *found;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(find("bos_token", config.bos_token, bos_id_));
  RETURN_IF_ERROR(find("eos_token", config.eos_token, eos_id_));
  adds_bos_ = config.add_bos_token.value_or(adds_bos_);
  if (adds_bos_ && bos_id_ < 0) {
    return absl::InvalidArgumentError("add_bos_token: true, but bos_token is not set, allowed false");
  }
  templates_ = config.templates;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string_view>> Tokenizer::Cut(std::string_view text,
                                                             RegexScratch& scratch) const {
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const SplitRegex& split : splits_) {
    std::vector<std::string_view> finer;
    finer.reserve(pieces.size());
    for (const std::string_view piece : pieces) RETURN_IF_ERROR(split.Split(piece, scratch, finer));
    pieces = std::move(finer);
  }
  return pieces;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       const EncodeOptions& options) const {
  const MayLackMemory scope;
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d bytes, allowed at most %d", text.size(), kMaxTextBytes));
  }
  if (const size_t invalid = FirstInvalidUtf8(text); invalid != text.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("not UTF-8 at byte %d, allowed UTF-8 text", invalid));
  }
  std::vector<int32_t> ids;
  if (options.add_bos && adds_bos_) ids.push_back(bos_id_);
  const std::vector<TextSegment> segments =
      options.parse_special ? added_tokens_.Cut(text) : std::vector<TextSegment>{{text, -1}};
  RegexScratch scratch;
  for (const TextSegment& segment : segments) {
    if (segment.added_id >= 0) {
      ids.push_back(segment.added_id);
      continue;
    }
    if (const size_t at = segment.text.find_first_of(missing_bytes_); at != std::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrFormat("byte 0x%02X has no token in this small vocabulary",
                                                        static_cast<uint8_t>(segment.text[at])));
    }
    ASSIGN_OR_RETURN(const std::vector<std::string_view> pieces, Cut(segment.text, scratch));
    for (const std::string_view piece : pieces) bpe_.Encode(piece, ids);
  }
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  Utf8Repair repair;
  std::string text;
  for (const int32_t id : ids) {
    if (!skip_special || !IsSpecial(id)) text += repair.Append(TokenBytes(id));
  }
  return text + repair.Flush();
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(token_bytes_[id]) : std::string_view();
}

bool Tokenizer::IsSpecial(int32_t id) const { return id >= 0 && id < vocab_size() && special_[id]; }

std::optional<int32_t> Tokenizer::AddedTokenId(std::string_view content) const {
  const auto found = added_ids_.find(std::string(content));
  return found == added_ids_.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

}  // namespace foredraft
