#pragma once

// Reads tiktoken.model, the vocabulary of Moonshot's checkpoints that have no tokenizer.json (Kimi-K2 to
// K2.7). A line has a token's bytes in base64 and its rank, which is its id. The 256 ids after the last rank
// are special tokens, whose names are in added_tokens_decoder of tokenizer_config.json. The regex that splits
// text before the merges is a constant here: the Python code of all these checkpoints has the same one.

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/bpe.h"
#include "server/text/tokenizer_json.h"

namespace foredraft {

inline constexpr char kTiktokenFile[] = "tiktoken.model";

// `named`: the special tokens that have names of their own (ReadAddedTokensDecoder). INVALID_ARGUMENT names
// the line, the rank or the id, and what is allowed.
absl::StatusOr<TokenizerJson> ReadTiktokenFile(std::string_view model,
                                               std::vector<TokenizerJson::AddedToken> named);

// Adds tiktoken's merges of the tokens 0 .. file.rank_count - 1 to `bpe`: a piece that is a token stays
// whole, and two neighbours whose bytes together are a token may become it, the lowest id first.
void AddTiktokenMerges(const TokenizerJson& file, Bpe& bpe);

}  // namespace foredraft
