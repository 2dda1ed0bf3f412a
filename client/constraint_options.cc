#include "client/constraint_options.h"

#include <fstream>
#include <iterator>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

absl::StatusOr<std::string> FileText(const char* option, const std::string& path) {
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file.is_open() || file.bad()) {
    return absl::NotFoundError(absl::StrCat(option, ": ", path, ": cannot be read"));
  }
  return text;
}

// `value` itself if it is JSON, which begins with a brace; otherwise the text of the file that it names.
absl::StatusOr<std::string> JsonText(const char* option, const std::string& value) {
  const size_t first = value.find_first_not_of(" \n\r\t");
  if (first != std::string::npos && value[first] == '{') return value;
  return FileText(option, value);
}

}  // namespace

void ConstraintOptions::Add(CLI::App& command) {
  CLI::Option_group* group =
      command.add_option_group("Structured output", "What the answer must be; thinking comes before it");
  group->add_option("--json-schema", json_schema_, "JSON by this schema: its text, or a file")
      ->type_name("FILE");
  group->add_flag("--json-object", json_object_, "any JSON object");
  group->add_option("--regex", regex_, "text that this regular expression matches as a whole")
      ->type_name("R");
  group->add_option("--choice", choices_, "this text or another choice; repeatable")
      ->allow_extra_args(false)
      ->type_name("S");
  group->add_option("--grammar", grammar_, "text by this grammar in GBNF")->type_name("FILE");
  group->add_option("--structural-tag", structural_tag_, "text with structured parts: JSON text, or a file")
      ->type_name("FILE");
  group->require_option(0, 1);
  CLI::Option* compact = command.add_flag(
      "--compact", compact_, "JSON without white space: of --json-schema, --json-object, --structural-tag");
  compact->group("Structured output");
}

absl::Status ConstraintOptions::ApplyTo(v1::GenerateRequest& request) const {
  if (json_schema_) {
    ASSIGN_OR_RETURN(*request.mutable_constraint()->mutable_json_schema(),
                     JsonText("--json-schema", *json_schema_));
  }
  if (compact_) {
    if (!json_schema_ && !json_object_ && !structural_tag_) {
      return absl::InvalidArgumentError(
          "--compact: given without --json-schema, --json-object or --structural-tag");
    }
    request.mutable_constraint()->set_compact(true);
  }
  if (json_object_) request.mutable_constraint()->set_json_object(true);
  if (regex_) request.mutable_constraint()->set_regex(*regex_);
  for (const std::string& choice : choices_) {
    request.mutable_constraint()->mutable_choice()->add_choices(choice);
  }
  if (grammar_) {
    ASSIGN_OR_RETURN(*request.mutable_constraint()->mutable_grammar(), FileText("--grammar", *grammar_));
  }
  if (structural_tag_) {
    ASSIGN_OR_RETURN(*request.mutable_constraint()->mutable_structural_tag(),
                     JsonText("--structural-tag", *structural_tag_));
  }
  return absl::OkStatus();
}

}  // namespace foredraft
