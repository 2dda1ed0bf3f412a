#include "server/text/tiktoken_file.h"

#include <array>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/text/byte_alphabet.h"

namespace foredraft {
namespace {

constexpr int32_t kSpecialCount = 256;
// Bounds the lookups of AddTiktokenMerges, one for each place where a token can be cut; the longest token of
// Kimi-K2 has 128 bytes.
constexpr size_t kMaxTokenBytes = 1024;
constexpr int32_t kMaxRanks = (1 << 20) - kSpecialCount;  // as tokenizer.json's ids

constexpr char kSplit[] = R"([\p{Han}]+)"
                          R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
                          R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
                          R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
                          R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
                          R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

absl::Status Refuse(int line, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrFormat("line %d: %s", line, what));
}

struct RankedToken {
  std::string bytes;
  int32_t rank = 0;
};

// Reads a line such as "IQ== 0".
absl::StatusOr<RankedToken> ReadLine(std::string_view text, int line) {
  const size_t space = text.find(' ');
  RankedToken token;
  const std::string_view code = text.substr(0, space);
  if (space == std::string_view::npos || !absl::Base64Unescape({code.data(), code.size()}, &token.bytes) ||
      token.bytes.empty()) {
    return Refuse(line, "allowed the bytes of a token in base64, a space and its rank");
  }
  if (token.bytes.size() > kMaxTokenBytes) {
    return Refuse(
        line, absl::StrFormat("a token of %d bytes, allowed at most %d", token.bytes.size(), kMaxTokenBytes));
  }
  const std::string_view rank = text.substr(space + 1);
  const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), token.rank);
  if (error != std::errc() || end != rank.data() + rank.size() || token.rank < 0 || token.rank >= kMaxRanks) {
    return Refuse(line, absl::StrFormat("rank \"%s\", allowed 0..%d",
                                        absl::CEscape({rank.data(), rank.size()}), kMaxRanks - 1));
  }
  return token;
}

// The bytes of all tokens, by rank.
absl::StatusOr<std::vector<std::string>> ReadRanks(std::string_view model) {
  std::vector<std::string> tokens;
  size_t count = 0;
  for (int line = 1; !model.empty(); ++line) {
    const size_t end = model.find('\n');
    std::string_view text = model.substr(0, end);
    model.remove_prefix(end == std::string_view::npos ? model.size() : end + 1);
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty()) continue;
    ASSIGN_OR_RETURN(RankedToken token, ReadLine(text, line));
    if (static_cast<size_t>(token.rank) >= tokens.size()) tokens.resize(token.rank + 1);
    if (!tokens[token.rank].empty()) {
      return Refuse(line, absl::StrFormat("rank %d, which another line has already", token.rank));
    }
    tokens[token.rank] = std::move(token.bytes);
    ++count;
  }
  if (count == tokens.size()) return tokens;
  return absl::InvalidArgumentError(absl::StrFormat(
      "%d tokens with ranks up to %d, allowed the ranks from 0 on without a gap", count, tokens.size() - 1));
}

// Checks that each byte is a token, and that no two tokens have the same bytes.
absl::Status CheckRanks(const std::vector<std::string>& tokens) {
  absl::flat_hash_map<std::string_view, size_t> ranks;
  std::array<bool, 256> has_byte = {};
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    const auto [other, is_new] = ranks.try_emplace(tokens[rank], rank);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrFormat("ranks %d and %d are the same bytes, \"%s\"",
                                                        other->second, rank, absl::CEscape(tokens[rank])));
    }
    if (tokens[rank].size() == 1) has_byte[static_cast<uint8_t>(tokens[rank][0])] = true;
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (!has_byte[byte]) {
      return absl::InvalidArgumentError(
          absl::StrFormat("no token for byte 0x%02X, allowed a token for each byte", byte));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerJson> ReadTiktokenFile(std::string_view model,
                                               std::vector<TokenizerJson::AddedToken> named) {
  ASSIGN_OR_RETURN(const std::vector<std::string> ranked, ReadRanks(model));
  RETURN_IF_ERROR(CheckRanks(ranked));
  TokenizerJson file;
  file.rank_count = static_cast<int32_t>(ranked.size());
  file.splits.push_back({kSplit, /*literal=*/false});
  for (const std::string& bytes : ranked) file.tokens.push_back(TokenOfBytes(bytes));
  const int32_t first = file.rank_count, last = first + kSpecialCount - 1;
  for (int32_t id = first; id <= last; ++id) {
    file.added_tokens.push_back({.content = absl::StrCat("<|reserved_token_", id, "|>"),
                                 .id = id,
                                 .special = true,
                                 .normalized = false});
  }
  for (TokenizerJson::AddedToken& token : named) {
    if (token.id < first || token.id > last) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%d ranks, and added_tokens_decoder of tokenizer_config.json names the special token %d, allowed "
          "%d..%d",
          file.rank_count, token.id, first, last));
    }
    file.added_tokens[token.id - first] = std::move(token);
  }
  absl::flat_hash_map<std::string_view, int32_t> ids;
  for (const TokenizerJson::AddedToken& token : file.added_tokens) {
    const auto [other, is_new] = ids.try_emplace(token.content, token.id);
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the special tokens %d and %d are both \"%s\", allowed different ones",
                          other->second, token.id, token.content));
    }
    file.tokens.push_back(token.content);
  }
  return file;
}

void AddTiktokenMerges(const TokenizerJson& file, Bpe& bpe) {
  std::vector<std::string> tokens;  // their bytes, by id
  for (int32_t id = 0; id < file.rank_count; ++id) {
    tokens.push_back(BytesOfToken(file.tokens[id]).value_or(""));
  }
  absl::flat_hash_map<std::string_view, int32_t> ids;
  for (int32_t id = 0; id < file.rank_count; ++id) ids.emplace(tokens[id], id);
  for (int32_t id = 0; id < file.rank_count; ++id) {
    const std::string_view whole = tokens[id];
    for (size_t cut = 1; cut < whole.size(); ++cut) {
      const auto left = ids.find(whole.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(whole.substr(cut));
      if (right != ids.end()) bpe.AddMerge(left->second, right->second, {.rank = id, .id = id});
    }
    bpe.AddWholePiece(tokens[id], id);
  }
}

}  // namespace foredraft
