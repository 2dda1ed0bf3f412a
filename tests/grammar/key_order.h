#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "grammar/grammar.h"
#include "grammar/json_source.h"
#include "tests/grammar/large_vocabulary.h"

namespace foredraft {

// JSON text as Python's json.dumps writes it: a space behind each comma and colon.
std::string DumpJson(const JsonValue& value);

// The text of `value` with the keys of its objects in an order that the grammar takes: a grammar of a schema
// fixes the order of keys, a valid instance may have any. The search begins with the order of `schema`, which
// is the grammar's but where keywords are merged. Nothing if no order is found within `max_bytes` bytes
// tried.
std::optional<std::string> InAnOrderOf(const std::shared_ptr<const Grammar>& grammar, const JsonValue& value,
                                       const JsonValue& schema, const LargeVocabulary& vocabulary,
                                       int64_t max_bytes = 2'000'000);

}  // namespace foredraft
