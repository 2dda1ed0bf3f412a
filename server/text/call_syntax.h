#pragma once

// How a family's models write thinking and calls of tools into their output: literals, which AnswerParser
// looks for. Added tokens in a literal match by id only; where the tokenizer lacks one, its text matches.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/text/tokenizer.h"

namespace foredraft {

// A section of calls is `begin call... end`; without `begin` each call is a section. A call is
//
//   kJson     call NAME name_end ARGUMENTS call_end
//   kDsml     call NAME name_end (key K key_end true|false" value V value_end)... call_end
//   kTagged   call NAME (key K key_end value V value_end)... call_end
struct CallSyntax {
  enum class Arguments {
    kJson,    // an object, as it is
    kDsml,    // per argument, with a flag that says whether it is a string
    kTagged,  // per argument; the tool's schema says whether it is a string
  };
  Arguments arguments = Arguments::kJson;
  std::string begin, end;
  std::string call, name_end, call_end;
  std::string key, key_end, value, value_end;
  bool fenced = false;     // the arguments end in three backticks
  bool names_ids = false;  // NAME is "functions.NAME:INDEX" and the call's id
  bool ends_thought =
      false;               // where a request has tools, `begin`, or else a call of one, ends an open thought
  bool own_lines = false;  // up to two line breaks before `begin` belong to it
  // What the family's models write between these parts. The parser does not ask for it; calls that must
  // follow the format have it (server/constraints/tool_tag.h).
  struct Spacing {
    std::string before_begin, behind_begin, behind_name, before_call_end, between_calls, before_end;
  };
  Spacing spacing = {};
};

// Text with marks: a mark stands for an added token, as two bytes that no UTF-8 text has together.
inline constexpr char kMarkByte = '\xFF';
inline constexpr int kBeginThinkingMark = 0, kEndThinkingMark = 1, kFirstCallMark = 2;
std::string MarkText(int mark);

// A CallSyntax for one tokenizer. Immutable; thread-safe.
class AnswerSyntax {
 public:
  AnswerSyntax() = default;
  // The literals of `calls` are as the family spells them. The tokenizer outlives this.
  AnswerSyntax(const CallSyntax& calls, const Tokenizer& tokenizer);

  // The literals with marks in the place of added tokens.
  const CallSyntax& calls() const { return calls_; }
  // The mark of an added token of the literals; -1: another token.
  int MarkOf(int32_t token_id) const;
  // Replaces the marks of calls by what they spell out; with `as_shown`, by nothing where decoded text skips
  // the token. Marks of thinking are spelled out.
  std::string Unmarked(std::string_view marked, bool as_shown) const;

 private:
  struct MarkedToken {
    std::string text;
    bool is_special;
  };

  std::string Cut(std::string_view literal);

  CallSyntax calls_;
  const Tokenizer* tokenizer_ = nullptr;
  absl::flat_hash_map<int32_t, int> marks_;
  std::vector<MarkedToken> tokens_;  // by mark - kFirstCallMark
};

}  // namespace foredraft
