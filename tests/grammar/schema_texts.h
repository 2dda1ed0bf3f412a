#pragma once

// Texts against JSON Schemas, byte by byte.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grammar/compile.h"
#include "tests/grammar/small_vocabulary.h"

namespace foredraft {

inline const std::shared_ptr<const Vocabulary>& Bytes() {
  static const auto vocabulary = SmallVocabulary({});
  return vocabulary;
}

inline absl::StatusOr<std::shared_ptr<const Grammar>> CompileSchema(const std::string& schema,
                                                                    bool compact = false) {
  return CompileConstraint({.kind = Constraint::kJsonSchema, .source = schema, .compact = compact}, Bytes(),
                           {});
}

// "accepted", "refused at N" for the first byte that does not fit, or "incomplete".
inline std::string Try(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  Matcher matcher(grammar);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto taken = matcher.Advance(static_cast<uint8_t>(text[i]));
    if (!taken.ok()) return taken.status().ToString();
    if (!*taken) return "refused at " + std::to_string(i);
  }
  return matcher.IsAccepting() ? "accepted" : "incomplete";
}

}  // namespace foredraft
