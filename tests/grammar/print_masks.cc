// Prints the masks along the tokens of texts, for who compares them with another implementation's
// (tests/grammar/llguidance_test.py).
//
// Reads lines of JSON. The first is {"tokens": [bytes in hex, ...]}, whose last token ends outputs and
// matches no bytes. Each other one is {"kind": ..., "source": ..., "ids": [...]}, the kind a field of
// Constraint; JSON is without white space. Its answer is {"masks": [...], "taken": N, "accepts": ...}: the
// masks of the tokens taken and of the next one, in hex, token v in bit v % 8 of byte v / 8; or {"refused":
// text}.

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/check.h"
#include "grammar/compile.h"
#include "grammar/grammar.h"

namespace foredraft {
namespace {

using nlohmann::json;

std::shared_ptr<const Vocabulary> ReadVocabulary(const json& tokens) {
  VocabularySource source;
  for (const json& token : tokens)
    source.ordinary.push_back(absl::HexStringToBytes(token.get<std::string>()));
  const auto end = static_cast<int32_t>(source.ordinary.size()) - 1;
  source.ordinary[end].clear();
  source.added.emplace_back("<end>", end);
  source.end_ids = {end};
  auto vocabulary = Vocabulary::Create(std::move(source));
  CHECK(vocabulary.ok()) << vocabulary.status().ToString();
  return *std::move(vocabulary);
}

std::string Hex(const TokenMask& mask, int32_t vocab_size) {
  std::string bytes((vocab_size + 7) / 8, '\0');
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (mask.Allows(id)) bytes[id / 8] = static_cast<char>(bytes[id / 8] | 1 << (id % 8));
  }
  return absl::BytesToHexString(bytes);
}

json Answer(const json& asked, const std::shared_ptr<const Vocabulary>& vocabulary) {
  Constraint constraint{.source = asked.at("source").get<std::string>(), .compact = true};
  while (ConstraintField(constraint.kind) != asked.at("kind").get<std::string>()) {
    CHECK_NE(constraint.kind, Constraint::kStructuralTag) << "kind " << asked.at("kind").dump();
    constraint.kind = static_cast<Constraint::Kind>(constraint.kind + 1);
  }
  const auto grammar = CompileConstraint(constraint, vocabulary, GrammarLimits());
  if (!grammar.ok()) return {{"refused", std::string(grammar.status().message())}};
  Matcher matcher(*grammar);
  json masks = json::array();
  int taken = 0;
  for (const json& id : asked.at("ids")) {
    masks.push_back(Hex(**matcher.Mask(), vocabulary->size()));
    if (!*matcher.Advance(id.get<int32_t>())) return {{"masks", masks}, {"taken", taken}, {"accepts", false}};
    ++taken;
  }
  masks.push_back(Hex(**matcher.Mask(), vocabulary->size()));
  return {{"masks", masks}, {"taken", taken}, {"accepts", matcher.IsAccepting()}};
}

int Main() {
  std::string line;
  std::getline(std::cin, line);
  const auto vocabulary = ReadVocabulary(json::parse(line).at("tokens"));
  while (std::getline(std::cin, line)) {
    std::printf("%s\n", Answer(json::parse(line), vocabulary).dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace foredraft

int main() { return foredraft::Main(); }
