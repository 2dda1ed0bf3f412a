#pragma once

// The class of every field that a wire over HTTP defines: what a reader takes, what has no effect, and what
// is refused because it would change the answer. The rows are in field_classes.inc.

#include <span>
#include <string>
#include <string_view>

#include "server/api/client_request.h"

namespace foredraft {

enum class FieldClass {
  kTaken,    // a reader asks for it; a value of a wrong type is refused
  kIgnored,  // cannot change which tokens come; its value is not looked at
  kHint,     // a hint that models here cannot follow: ignored, and noted
  kRefused,  // would change the answer, and is not supported; neutral values pass
};

struct FieldRow {
  NotedWire wire;
  std::string_view path;  // without indices: "messages[].content[].text"
  FieldClass field_class;
  const char* neutral;  // of kRefused: a JSON list of values that change nothing
  const char* note;     // of kRefused: what a refusal says is allowed; otherwise text for the document
};

std::span<const FieldRow> FieldRows();
// Null where the wire defines no such field.
const FieldRow* FindFieldRow(NotedWire wire, std::string_view path);
// The wire's field name below `scope` ("" or "messages[].") that is nearest to `name`; empty if there is
// none.
std::string_view NearestField(NotedWire wire, std::string_view scope, std::string_view name);

// The text of docs/client-fields.md.
std::string ClientFieldsDocument();

}  // namespace foredraft
