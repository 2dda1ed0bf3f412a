#pragma once

// The arguments of a tool call in the formats of DeepSeek-V3.2 and V4 (DSML) and of GLM: a marked parameter
// per property, strings raw and everything else as JSON.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "grammar/ir.h"
#include "grammar/json_schema.h"
#include "grammar/json_source.h"
#include "grammar/vocabulary.h"

namespace foredraft {

// The text around name and value. Added tokens in it match by id.
struct XmlFormat {
  std::string before_name;
  std::string before_string;  // between the name and a raw string
  std::string before_json;    // between the name and any other value
  std::string after_value;
};
XmlFormat DeepseekXml();
XmlFormat GlmXml();

// Whether a property of this name can be written so that a reader of the parameters finds the same name.
bool IsXmlName(std::string_view name);

// The parameters of an object schema: its declared properties in their order or, for a dictionary (which
// declares none), any names, which may repeat. INVALID_ARGUMENT: another schema, or a declared name that
// IsXmlName refuses.
absl::StatusOr<NodeId> AddXmlParameters(Ir& ir, const JsonValue& schema, const Vocabulary& vocabulary,
                                        const XmlFormat& format, const JsonStyle& style);

}  // namespace foredraft
