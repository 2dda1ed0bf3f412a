#pragma once

// Regular expressions of ECMA-262, as far as they are regular (docs/structured-output.md lists what is
// supported). Expressions become nodes; nothing here matches text.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "grammar/char_set.h"
#include "grammar/ir.h"

namespace foredraft {

// Makes the node of a character set, spelled raw or as in a JSON string (grammar/json_strings.h).
using CharSpelling = std::function<NodeId(Ir& ir, const CharSet& set)>;
NodeId SpellRaw(Ir& ir, const CharSet& set);

// A parsed expression. A plain value.
class Regex {
 public:
  enum Extent {
    kWhole,   // the expression is the whole text
    kSearch,  // the text has a match somewhere, as in JSON Schema's pattern
  };
  static constexpr int kMaxRepeat = 10'000;

  // INVALID_ARGUMENT names the construct and the byte of `pattern` where it is.
  static absl::StatusOr<Regex> Parse(std::string_view pattern, Extent extent, int max_depth = 64);

  // Whether a match may begin after the start of the text. The nodes then try a match from every character
  // on.
  bool begins_anywhere() const { return begins_anywhere_; }
  // Whether each match may end before the end of the text, so that any text may follow it.
  bool ends_anywhere() const { return ends_anywhere_; }
  // The language of the expression.
  NodeId AddTo(Ir& ir, const CharSpelling& spelling) const;

 private:
  friend class RegexParser;
  struct Node {
    enum Kind : uint8_t { kChars, kSequence, kAlternative, kRepeat, kStart, kEnd };
    Kind kind;
    CharSet chars;
    std::vector<int32_t> children;
    int32_t min = 0, max = 0;  // of kRepeat; max -1: no end
    size_t at = 0;             // byte of the pattern
  };
  absl::StatusOr<int32_t> WithoutAnchors(int32_t node, Extent extent);
  absl::Status CheckNoAnchor(int32_t node) const;
  int32_t Add(Node node);
  NodeId AddNode(Ir& ir, int32_t node, const CharSpelling& spelling) const;
  // An alternative of several sequences. A common beginning of some of them becomes nodes once.
  NodeId AddChoices(Ir& ir, std::vector<std::span<const int32_t>> choices,
                    const CharSpelling& spelling) const;
  bool AreEqual(int32_t a, int32_t b) const;

  std::vector<Node> nodes_;
  int32_t root_ = -1;
  int32_t any_text_ = -1;  // any text around a match; -1: not needed
  bool begins_anywhere_ = false;
  bool ends_anywhere_ = true;
};

// A search that a text passes if it has a match, or with is_member false if it has none.
struct RegexTest {
  std::string expression;
  bool is_member = true;
};
// Splits `expression` into tests, all of which a text must pass: look-aheads right after a leading ^ become
// tests of their own. Other look-aheads stay where they are.
std::vector<RegexTest> SplitLookAheads(std::string_view expression);

}  // namespace foredraft
