#include "server/api/fields/field_classes.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/edit_distance.h"

namespace foredraft {
namespace {

enum Wires : unsigned {
  Chat = 1,
  Completions = 2,
  Responses = 4,
  Messages = 8,
  Both = Chat | Completions,
  Agents = Responses | Messages,
  Talk = Chat | Agents,
  All = Talk | Completions,
};

struct ListedField {
  Wires wires;
  FieldRow row;  // its wire is not set yet
};

constexpr ListedField kListed[] = {
#define FIELD(wires, path, field_class, neutral, note) \
  {wires, {NotedWire::kOther, path, FieldClass::field_class, neutral, note}},
#include "server/api/fields/field_classes.inc"
#include "server/api/fields/field_classes_agents.inc"
#undef FIELD
};

constexpr std::pair<Wires, NotedWire> kWires[] = {{Chat, NotedWire::kChat},
                                                  {Completions, NotedWire::kCompletions},
                                                  {Responses, NotedWire::kResponses},
                                                  {Messages, NotedWire::kMessages}};

std::vector<FieldRow> MakeRows() {
  std::vector<FieldRow> rows;
  for (const auto& [bit, wire] : kWires) {
    for (const ListedField& listed : kListed) {
      if ((listed.wires & bit) == 0) continue;
      rows.push_back(listed.row);
      rows.back().wire = wire;
    }
  }
  return rows;
}

using RowsByPath = absl::flat_hash_map<std::string_view, const FieldRow*>;

const RowsByPath& RowsOf(NotedWire wire) {
  static const auto* const by_wire = [] {
    auto* const made = new std::array<RowsByPath, std::size(kNotedWires)>();
    for (const FieldRow& row : FieldRows()) {
      const bool is_new = (*made)[static_cast<size_t>(row.wire)].emplace(row.path, &row).second;
      CHECK(is_new) << std::string(row.path) << " stands twice in field_classes.inc";
    }
    return made;
  }();
  return (*by_wire)[static_cast<size_t>(wire)];
}

constexpr char kIntroduction[] =
    R"(<!-- Written by `foredraft check-config --docs docs` from server/api/fields/field_classes.inc and field_classes_agents.inc. -->

# Fields of requests over HTTP

Every field of a request has one of these classes. `null` is an absent field everywhere.

| class | |
|---|---|
| taken | does what its name says; a value of a wrong type is refused |
| ignored | cannot change which tokens come: accounts, caches, transport. Its value is not looked at |
| noted | a hint that this model or daemon cannot follow: ignored, and named in the header `x-foredraft-ignored` of the answer |
| refused | would change the answer, and is not there: 400 with its name, but for the values that change nothing |

A name that is in no table is ignored and noted, too; with `server.unknown_fields: refuse` it is a 400 that names the nearest
one. The log names each field that is noted once, `foredraft_ignored_fields_total` counts them, and the header has the first
16 of a request, then how many more there were: `x-foredraft-ignored: verbosity, messages[].timestamp, +3`.
)";

const char* NameOfClass(FieldClass field_class) {
  switch (field_class) {
    case FieldClass::kTaken:
      return "taken";
    case FieldClass::kIgnored:
      return "ignored";
    case FieldClass::kHint:
      return "noted";
    case FieldClass::kRefused:
      break;
  }
  return "refused";
}

// The JSON list of neutral values without its brackets, as a phrase for a Markdown table.
std::string NeutralValues(const FieldRow& row) {
  std::string_view values = row.neutral;
  values = values.substr(1, values.size() - 2);
  return values.empty() ? "but for null" : absl::StrCat("but for `", std::string(values), "`");
}

void AppendTable(NotedWire wire, std::string& text) {
  absl::StrAppend(&text, "\n| field | class | |\n|---|---|---|\n");
  for (const FieldRow& row : FieldRows()) {
    if (row.wire != wire) continue;
    const std::string about = row.field_class == FieldClass::kRefused ? NeutralValues(row) : row.note;
    absl::StrAppend(&text, "| `", std::string(row.path), "` | ", NameOfClass(row.field_class), " | ",
                    absl::StrReplaceAll(about, {{"|", "\\|"}}), " |\n");
  }
}

}  // namespace

std::span<const FieldRow> FieldRows() {
  static const auto* const rows = new std::vector<FieldRow>(MakeRows());
  return *rows;
}

const FieldRow* FindFieldRow(NotedWire wire, std::string_view path) {
  const RowsByPath& rows = RowsOf(wire);
  const auto found = rows.find(path);
  return found == rows.end() ? nullptr : found->second;
}

std::string_view NearestField(NotedWire wire, std::string_view scope, std::string_view name) {
  std::string_view nearest;
  int distance = 0;
  for (const FieldRow& row : FieldRows()) {
    if (row.wire != wire || !row.path.starts_with(scope)) continue;
    const std::string_view own = row.path.substr(scope.size());
    if (own.empty() || own.find('.') != std::string_view::npos) continue;
    const int here = EditDistance(own, name);
    if (!nearest.empty() && here >= distance) continue;
    nearest = own;
    distance = here;
  }
  return nearest;
}

std::string ClientFieldsDocument() {
  std::string text = kIntroduction;
  absl::StrAppend(&text, "\n## POST /v1/chat/completions\n");
  AppendTable(NotedWire::kChat, text);
  absl::StrAppend(&text, "\n## POST /v1/completions\n");
  AppendTable(NotedWire::kCompletions, text);
  absl::StrAppend(&text, "\n## POST /v1/responses, /v1/responses/input_tokens\n");
  AppendTable(NotedWire::kResponses, text);
  absl::StrAppend(&text, "\n## POST /v1/messages, /v1/messages/count_tokens\n");
  AppendTable(NotedWire::kMessages, text);
  return text;
}

}  // namespace foredraft
