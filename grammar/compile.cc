#include "grammar/compile.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/structural_tag.h"

namespace foredraft {
namespace {

absl::StatusOr<NodeId> AddChoice(Ir& ir, const std::vector<std::string>& choices) {
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!CodePoints(choices[i])) return absl::InvalidArgumentError(absl::StrFormat("[%d]: not UTF-8", i));
  }
  return ir.OneOf(choices);
}

absl::Status CheckChoiceLength(const std::vector<std::string>& choices) {
  if (choices.empty() || choices.size() > kMaxConstraintChoices) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d choices, allowed 1..%d", choices.size(), kMaxConstraintChoices));
  }
  int64_t bytes = 0;
  for (const std::string& choice : choices) bytes += static_cast<int64_t>(choice.size());
  if (bytes <= kMaxChoiceBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%d bytes, allowed at most %d", bytes, kMaxChoiceBytes));
}

absl::StatusOr<NodeId> AddRegex(Ir& ir, std::string_view source) {
  ASSIGN_OR_RETURN(const Regex regex, Regex::Parse(source, Regex::kWhole, ir.limits().max_depth));
  return regex.AddTo(ir, SpellRaw);
}

absl::StatusOr<StructuralTag> AddTag(Ir& ir, const Constraint& constraint, const Vocabulary& vocabulary) {
  return AddStructuralTag(ir, constraint.source, vocabulary, {constraint.compact},
                          constraint.free_until_trigger);
}

// Adds constraints of every kind except kStructuralTag.
absl::StatusOr<NodeId> AddConstraint(Ir& ir, const Constraint& constraint, const Vocabulary& vocabulary) {
  switch (constraint.kind) {
    case Constraint::kChoice:
      return AddChoice(ir, constraint.choices);
    case Constraint::kRegex:
      return AddRegex(ir, constraint.source);
    case Constraint::kJsonSchema:
      return AddJsonSchema(ir, constraint.source, {constraint.compact});
    case Constraint::kJsonObject:
      return AddJsonSchema(ir, R"({"type":"object"})", {constraint.compact});
    case Constraint::kGbnf:
      return AddGbnf(ir, constraint.source, vocabulary);
    case Constraint::kStructuralTag:
      break;
  }
  return absl::InvalidArgumentError("unknown kind");
}

absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const Constraint& constraint,
                                                       std::shared_ptr<const Vocabulary> vocabulary,
                                                       const GrammarLimits& limits,
                                                       std::shared_ptr<ByteLedger> ledger) {
  RETURN_IF_ERROR(CheckConstraintLength(constraint.kind, constraint.source, constraint.choices, limits));
  Ir ir(limits);
  StructuralTag body;
  if (constraint.kind == Constraint::kStructuralTag) {
    ASSIGN_OR_RETURN(body, AddTag(ir, constraint, *vocabulary));
  } else {
    ASSIGN_OR_RETURN(body.node, AddConstraint(ir, constraint, *vocabulary));
  }
  const RuleId root = ir.AddRule("the whole output");
  ir.SetRule(root, body.node);
  ir.set_root(root);
  return Grammar::Create(ir, std::move(vocabulary), std::move(body.trigger_ids), std::move(ledger));
}

}  // namespace

std::string_view ConstraintField(Constraint::Kind kind) {
  switch (kind) {
    case Constraint::kJsonSchema:
      return "json_schema";
    case Constraint::kJsonObject:
      return "json_object";
    case Constraint::kRegex:
      return "regex";
    case Constraint::kChoice:
      return "choice";
    case Constraint::kGbnf:
      return "grammar";
    case Constraint::kStructuralTag:
      return "structural_tag";
  }
  return "";
}

absl::Status CheckConstraintLength(Constraint::Kind kind, std::string_view source,
                                   const std::vector<std::string>& choices, const GrammarLimits& limits) {
  if (kind == Constraint::kChoice) return CheckChoiceLength(choices);
  if (static_cast<int64_t>(source.size()) <= limits.max_source_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%d bytes, allowed at most constraints.max_source_kib = %d KiB", source.size(),
                      limits.max_source_bytes >> 10));
}

absl::StatusOr<std::shared_ptr<const Grammar>> CompileConstraint(const Constraint& constraint,
                                                                 std::shared_ptr<const Vocabulary> vocabulary,
                                                                 const GrammarLimits& limits,
                                                                 std::shared_ptr<ByteLedger> ledger) {
  const MayLackMemory scope;
  auto grammar = Compile(constraint, std::move(vocabulary), limits, std::move(ledger));
  if (grammar.ok()) return grammar;
  return absl::Status(grammar.status().code(), absl::StrFormat("%s: %s", ConstraintField(constraint.kind),
                                                               grammar.status().message()));
}

GrammarCache::GrammarCache(std::shared_ptr<const Vocabulary> vocabulary, GrammarLimits limits,
                           int64_t max_bytes)
    : vocabulary_(std::move(vocabulary)), limits_(limits), max_bytes_(max_bytes) {}

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCache::Compile(const Constraint& constraint) {
  if (std::shared_ptr<const Grammar> grammar = Find(constraint)) return grammar;
  return CompileNew(constraint);
}

std::shared_ptr<const Grammar> GrammarCache::Find(const Constraint& constraint) {
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(constraint);
  if (place == places_.end()) {
    ++counts_.misses;
    return nullptr;
  }
  ++counts_.hits;
  entries_.splice(entries_.begin(), entries_, place->second);
  return entries_.front().grammar;
}

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCache::CompileNew(const Constraint& constraint) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Grammar> grammar,
                   CompileConstraint(constraint, vocabulary_, limits_, ledger_));
  Insert(constraint, grammar);
  return grammar;
}

void GrammarCache::Insert(const Constraint& constraint, std::shared_ptr<const Grammar> grammar) {
  const MustHaveMemory scope;  // Abseil's maps do not survive a key that cannot be copied into them
  // The key in places_ and the entry each hold a copy of the constraint.
  int64_t bytes = static_cast<int64_t>(constraint.source.size());
  for (const std::string& choice : constraint.choices) {
    bytes += static_cast<int64_t>(choice.size() + sizeof(std::string));
  }
  std::vector<std::shared_ptr<const Grammar>> dropped;  // destroyed after the unlock, since that takes time
  const std::lock_guard lock(mutex_);
  if (places_.contains(constraint)) return;
  grammar->account().Add(2 * bytes);
  grammar->account().SetListed(true);
  entries_.push_front({constraint, std::move(grammar)});
  places_[constraint] = entries_.begin();
  while (entries_.size() > 1 && (ledger_->listed() > max_bytes_ || entries_.size() > kMaxGrammars)) {
    Entry& oldest = entries_.back();
    oldest.grammar->account().SetListed(false);
    dropped.push_back(std::move(oldest.grammar));
    places_.erase(oldest.constraint);
    entries_.pop_back();
  }
}

GrammarCache::Counts GrammarCache::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  counts.bytes = ledger_->held();
  counts.grammars = static_cast<int64_t>(entries_.size());
  return counts;
}

}  // namespace foredraft
