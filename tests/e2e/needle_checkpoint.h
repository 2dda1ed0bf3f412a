#pragma once

// A checkpoint whose right answers are known at any length, by construction instead of training. Its prompts
// are noise with needles: a needle is a token that names a symbol and the symbol that follows it. After a
// symbol the model answers the one that follows it, wherever its needle is: layer 1 attends from the symbol
// to its needle and copies what the needle names, and the MTP module does the same for the token that it
// gets, so that all drafts are right. Noise resembles needles a little: it crowds the indexer's lists, and an
// attention that sees a needle outweighs it. So a selection that misses a needle shows as a wrong token, in
// the module as a rejected draft.
//
// Layer 0 does nothing but select, for GLM's layer 1, which shares its selection.

#include <cstdint>
#include <string>
#include <vector>

namespace foredraft {

inline constexpr int kNeedleSymbols = 24;

struct NeedleShape {
  std::string family;  // of tests/golden/checkpoints, whose config.json is taken
  int index_topk = 64;
  int max_positions = 8192;
  bool blind = false;         // the indexer's queries are zero, so that every position scores the same
  bool shares_lists = false;  // index_share_for_mtp_iteration: recycled drafts keep the list of the first
};
// Returns the checkpoint's directory.
std::string WriteNeedleCheckpoint(const NeedleShape& shape);

struct NeedlePrompt {
  std::vector<int32_t> ids;
  std::vector<int32_t> answer;  // kNeedleSymbols - 1 tokens
};
// `length` tokens: the needles in random places, at least one of them among the first hundred, and a symbol
// at the end.
NeedlePrompt MakeNeedlePrompt(int length, uint32_t seed);

}  // namespace foredraft
