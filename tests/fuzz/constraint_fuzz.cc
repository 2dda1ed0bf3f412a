// Constraints of every kind from the input, compiled with small limits, and masks along a path that the input
// chooses: their counted work stays within its bounds, and attempts that give up early find the same. Layout:
// kind and flags, the length of the path, the path, then the source. Choices are separated by line ends.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/check.h"
#include "grammar/compile.h"

namespace foredraft {
namespace {

std::shared_ptr<const Vocabulary> MakeVocabulary() {
  VocabularySource source;
  for (int byte = 0; byte < 256; ++byte) source.ordinary.emplace_back(1, static_cast<char>(byte));
  for (const char* word :
       {"ab", "abc", "\": \"", "\",", "{\"", "},\n  ", "aaaaaaaa", "\xE4\xB8\xAD\xE5", "12", "</", "true"}) {
    source.ordinary.emplace_back(word);
  }
  const int32_t end = static_cast<int32_t>(source.ordinary.size()) + 1;
  source.added = {{"<a>", end - 1}, {"<end>", end}};
  source.ordinary.resize(end + 1);
  source.end_ids = {end};
  auto vocabulary = Vocabulary::Create(std::move(source));
  CHECK(vocabulary.ok());
  return *vocabulary;
}

constexpr int64_t kMostMaskSteps = 20'000;
// Whatever is counted, one transition may pass the limit, and so may what text was found to be.
constexpr int64_t kMostWork = 4 * kMostMaskSteps;

// The mask by attempts, each with twice the allowance of the one before.
absl::StatusOr<std::shared_ptr<const TokenMask>> MaskInAttempts(Matcher matcher) {
  for (int64_t allowance = 8;; allowance *= 2) {
    MaskWork work = {.allowance = allowance, .waits = false};
    auto mask = matcher.Mask(&work);
    if (!absl::IsAborted(mask.status())) return mask;
    CHECK_LE(allowance, kMostWork) << "an attempt gave up although it had steps left";
  }
}

// The same rows whether they are made at once or not, forced text included.
void CompareRows(const Matcher& matcher, std::span<const int32_t> drafts) {
  const RowLimits limits = {.drafts = 4, .forced_drafts = 3};
  MaskWork work;
  const auto rows = matcher.RowsAlong(drafts, limits, &work);
  CHECK_LE(work.steps, 16 * kMostWork);
  for (int64_t allowance = 8;; allowance *= 2) {
    MaskWork part = {.allowance = allowance};
    const auto again = matcher.RowsAlong(drafts, limits, &part);
    if (absl::IsAborted(again.status())) continue;
    CHECK_EQ(again.ok(), rows.ok());
    if (!rows.ok()) return;
    CHECK_EQ(again->masks.size(), rows->masks.size());
    CHECK(again->forced_drafts == rows->forced_drafts);
    return;
  }
}

void TryConstraint(std::string_view input) {
  static const std::shared_ptr<const Vocabulary> vocabulary = MakeVocabulary();
  if (input.size() < 2) return;
  const uint8_t head = static_cast<uint8_t>(input[0]);
  const std::string_view path = input.substr(2, static_cast<uint8_t>(input[1]) % 16);
  Constraint constraint;
  constraint.kind = static_cast<Constraint::Kind>(head % 6);
  constraint.compact = (head & 64) != 0;
  constraint.source = std::string(input.substr(2 + path.size()));
  if (constraint.kind == Constraint::kChoice) {
    constraint.choices = absl::StrSplit(constraint.source, '\n');
    constraint.source.clear();
  }
  GrammarLimits limits;
  limits.max_compile_steps = 200'000;
  limits.max_nodes = 20'000;
  limits.max_product_states = 500;
  limits.max_mask_steps = kMostMaskSteps;
  limits.max_configurations = 128;
  const auto grammar = CompileConstraint(constraint, vocabulary, limits);
  if (!grammar.ok()) {
    CHECK(absl::IsInvalidArgument(grammar.status()) || absl::IsFailedPrecondition(grammar.status()))
        << grammar.status().ToString();
    return;
  }
  Matcher matcher(*grammar);
  for (const char choice : path) {
    const auto in_attempts = MaskInAttempts(matcher);
    MaskWork work;
    const auto mask = matcher.Mask(&work);
    CHECK_LE(work.steps, kMostWork);
    CHECK_EQ(in_attempts.ok(), mask.ok())
        << in_attempts.status().ToString() << ", " << mask.status().ToString();
    if (!mask.ok()) return;
    CHECK_EQ((*in_attempts)->count, (*mask)->count);
    CHECK((*mask)->count > 0);
    int32_t chosen = -1;
    for (int32_t i = 0; i < vocabulary->size(); ++i) {
      const int32_t id = (i + 37 * static_cast<uint8_t>(choice)) % vocabulary->size();
      Matcher after = matcher;
      const auto taken = after.Advance(id);
      if (!taken.ok()) return;
      CHECK_EQ(*taken, (*mask)->Allows(id));
      if (*taken && chosen < 0) chosen = id;
    }
    const int32_t drafts[] = {chosen, static_cast<int32_t>(choice)};
    CompareRows(matcher, drafts);
    CHECK(*matcher.Advance(chosen));
    if (matcher.has_ended()) return;
  }
}

}  // namespace
}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  foredraft::TryConstraint(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
