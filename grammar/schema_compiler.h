#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/status/statusor.h"
#include "grammar/ir.h"
#include "grammar/json_style.h"
#include "grammar/schema_reader.h"

namespace foredraft {

// Turns conjunctions into rules, one per conjunction. Used by AddJsonSchema and AddXmlParameters.
class SchemaCompiler {
 public:
  SchemaCompiler(Ir& ir, const JsonValue& root, const JsonStyle& style);
  // Makes all rules and returns the root's.
  absl::StatusOr<RuleId> Compile();
  // Makes the rules of a conjunction that another reader of the same document made, and returns its node.
  absl::StatusOr<NodeId> CompileValue(const Conjunction& conjunction);

  // Names the keywords whose automata are multiplied: "format and maxLength together need".
  static std::string TogetherNeed(const MergedSchema& merged);

 private:
  const JsonValue& Place(const Conjunction& conjunction) const {
    return conjunction.parts.empty() ? root_ : *conjunction.parts[0].schema;
  }
  absl::Status CompilePending();
  RuleId RuleOf(const Conjunction& conjunction, const JsonValue& place);
  absl::StatusOr<NodeId> Body(const Conjunction& conjunction, const std::string& place);
  absl::StatusOr<NodeId> Branch(const Conjunction& conjunction, int part, const std::string& place);
  absl::StatusOr<NodeId> Values(const Conjunction& conjunction, const JsonValue& values);
  NodeId Value(const JsonValue& value);
  NodeId CallShared(RuleId& rule, std::string_view name, const std::function<NodeId()>& body);
  absl::StatusOr<NodeId> Number(const NumberRange& range, const std::string& place);
  NodeId AnyString(int64_t min_length, int64_t max_length);
  // The strings of a single pattern or format.
  absl::StatusOr<NodeId> OfPattern(const MergedSchema& merged);
  absl::StatusOr<NodeId> String(const MergedSchema& merged);
  absl::StatusOr<NodeId> Array(const Conjunction& conjunction, const MergedSchema& merged);
  // Arrays whose elements all differ (uniqueItems), where few values are allowed.
  absl::StatusOr<NodeId> UniqueArray(const Conjunction& conjunction, const MergedSchema& merged);
  NodeId ArrayOfEach(const std::vector<const JsonValue*>& values, int64_t min, int64_t max);
  absl::StatusOr<NodeId> Object(const Conjunction& conjunction, const MergedSchema& merged);
  // The declared properties as members, without the first quotes of their keys; Never for one that may not
  // come.
  absl::StatusOr<std::vector<NodeId>> DeclaredMembers(const Conjunction& conjunction,
                                                      const MergedSchema& merged);
  // One member with an undeclared key, without the key's first quote; Never if none may come.
  absl::StatusOr<NodeId> OtherMember(const Conjunction& conjunction, const MergedSchema& merged);
  absl::StatusOr<NodeId> OtherKeys(const MergedSchema& merged, const std::vector<std::string>& patterns,
                                   const std::vector<std::string>& matched, const JsonValue* place);
  // How many undeclared members may come; max -1: no end.
  struct OtherCount {
    int64_t min = 0, max = -1;
    bool may_be_empty_object = true;
    int64_t counted = 0;  // up to how many members are counted, where some declared ones are optional
  };
  static absl::Status RefuseCount(const Conjunction& conjunction, const char* keyword, int64_t count,
                                  const std::string& reason);
  absl::StatusOr<OtherCount> CountOthers(const Conjunction& conjunction, const MergedSchema& merged,
                                         bool has_others);
  NodeId Member(NodeId key, RuleId value);
  NodeId Nested(NodeId body, std::string name);
  NodeId List(NodeId item, NodeId separator, int64_t min, int64_t max);

  Ir& ir_;
  const JsonValue& root_;
  SchemaReader reader_;
  NodeId space_;      // white space between two of JSON's tokens
  NodeId separator_;  // a comma between members or elements
  // Rules that many places call; -1 = not made yet.
  RuleId string_ = -1, string_char_ = -1, number_ = -1, integer_ = -1;
  RuleId space_rule_ = -1;
  std::map<std::string, RuleId> pattern_rules_;  // by expression
  struct Pending {
    RuleId rule;
    Conjunction conjunction;
    std::string place;
  };
  std::vector<Pending> pending_;
  using RuleKey = std::pair<std::vector<SchemaPart>, bool>;
  std::unordered_map<RuleKey, RuleId, absl::Hash<RuleKey>> rules_;
};

}  // namespace foredraft
