// Constraints of every kind from the input, compiled with small limits, and masks along a path that the input
// chooses. Layout: kind and flags, the length of the path, the path, then the source. Choices are separated
// by line ends.

#include <cstdint>
#include <memory>
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
  limits.max_mask_steps = 200'000;
  limits.max_configurations = 128;
  const auto grammar = CompileConstraint(constraint, vocabulary, limits);
  if (!grammar.ok()) {
    CHECK(absl::IsInvalidArgument(grammar.status()) || absl::IsFailedPrecondition(grammar.status()))
        << grammar.status().ToString();
    return;
  }
  Matcher matcher(*grammar);
  for (const char choice : path) {
    const auto mask = matcher.Mask();
    if (!mask.ok()) return;
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
