#include "grammar/xml_parameters.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "grammar/json_strings.h"
#include "grammar/schema_compiler.h"
#include "grammar/schema_reader.h"
#include "grammar/structural_tag.h"

namespace foredraft {
namespace {

// {"type": [...]} with strings alone, and with everything else.
JsonValue TypeSchema(bool is_string) {
  JsonValue types = {.kind = JsonValue::kArray};
  for (const char* name : {"string", "null", "boolean", "number", "array", "object"}) {
    if (is_string == (std::string_view(name) == "string"))
      types.items.push_back({.kind = JsonValue::kString, .text = name});
  }
  JsonValue schema = {.kind = JsonValue::kObject};
  schema.keys = {"type"};
  schema.items = {std::move(types)};
  return schema;
}

const JsonValue& StringsOnly() {
  static const JsonValue schema = TypeSchema(true);
  return schema;
}
const JsonValue& NoStrings() {
  static const JsonValue schema = TypeSchema(false);
  return schema;
}

class ParameterCompiler {
 public:
  ParameterCompiler(Ir& ir, const JsonValue& root, const Vocabulary& vocabulary, const XmlFormat& format,
                    const JsonStyle& style)
      : ir_(ir),
        root_(root),
        vocabulary_(vocabulary),
        format_(format),
        reader_(root, ir.limits(), ir.work()),
        compiler_(ir, root, style) {}

  absl::StatusOr<NodeId> Compile() {
    Conjunction all;
    RETURN_IF_ERROR(reader_.Expand(root_, all));
    ASSIGN_OR_RETURN(const MergedSchema merged, reader_.Merge(all));
    const bool has_counts = merged.min_properties > 0 || merged.max_properties >= 0;
    if (merged.types != kObjectType || merged.branching_part >= 0 || merged.values != nullptr || has_counts ||
        !merged.key_patterns.empty()) {
      return RefuseSchema(root_, "not supported in this style, allowed an object with declared properties");
    }
    if (merged.names.empty()) RETURN_IF_ERROR(CheckNoDictionary(all));
    std::vector<NodeId> parts;
    for (size_t n = 0; n < merged.names.size(); ++n) {
      ASSIGN_OR_RETURN(const Conjunction value, reader_.PropertyOf(all, merged.names[n]));
      ASSIGN_OR_RETURN(const NodeId parameter, Parameter(merged.names[n], value));
      parts.push_back(merged.is_required[n] ? parameter : ir_.Optional(parameter));
    }
    return ir_.Sequence(parts);
  }

 private:
  NodeId Literal(const std::string& text) { return AddMarkedLiteral(ir_, text, vocabulary_); }

  // Names that nobody declares are not offered, so an object that has no others would always be empty.
  static absl::Status CheckNoDictionary(const Conjunction& all) {
    for (const SchemaPart& part : all.parts) {
      const JsonValue* const others = part.schema->Find("additionalProperties");
      if (others == nullptr || (others->kind == JsonValue::kBoolean && !others->boolean)) continue;
      return RefuseSchema(*others,
                          "a dictionary is not supported in this style, allowed declared properties");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<NodeId> Parameter(const std::string& name, const Conjunction& value) {
    if (!IsXmlName(name)) {
      return RefuseSchema(root_,
                          absl::StrFormat("the property %s is not supported in this style, allowed names "
                                          "without quotes, angle brackets, line breaks and outer spaces",
                                          QuoteJson(name.substr(0, 64))));
    }
    Conjunction strings = value, others = value;
    RETURN_IF_ERROR(reader_.Expand(StringsOnly(), strings));
    RETURN_IF_ERROR(reader_.Expand(NoStrings(), others));
    ASSIGN_OR_RETURN(const NodeId raw, RawString(strings));
    ASSIGN_OR_RETURN(const NodeId json, compiler_.CompileValue(others));
    return ir_.Sequence({Literal(format_.before_name), ir_.Literal(name),
                         ir_.Alternative({ir_.Sequence({Literal(format_.before_string), raw}),
                                          ir_.Sequence({Literal(format_.before_json), json})}),
                         Literal(format_.after_value)});
  }

  // The text of strings, without quotes or escapes.
  absl::StatusOr<NodeId> RawString(const Conjunction& strings) {
    if (strings.never != nullptr) return ir_.Never();
    ASSIGN_OR_RETURN(const MergedSchema merged, reader_.Merge(strings));
    if ((merged.types & kStringType) == 0) return ir_.Never();
    if (merged.values != nullptr) {
      ASSIGN_OR_RETURN(const auto values, reader_.ValuesOf(strings, *merged.values));
      std::vector<std::string> texts;
      for (const JsonValue* value : values) texts.push_back(value->text);
      return texts.empty() ? ir_.Never() : ir_.OneOf(texts);
    }
    if (merged.branching_part >= 0) {
      ASSIGN_OR_RETURN(const auto branches, reader_.Branches(strings, merged.branching_part));
      std::vector<NodeId> choices;
      for (const Conjunction& branch : branches) {
        ASSIGN_OR_RETURN(const NodeId choice, RawString(branch));
        choices.push_back(choice);
      }
      return ir_.Alternative(choices);
    }
    std::vector<StringTest> tests;
    for (const JsonValue* pattern : merged.patterns) {
      ASSIGN_OR_RETURN(const auto set, reader_.PatternOf(*pattern));
      tests.push_back({set});
    }
    // The text ends at the marker behind it, which ordinary text may not spell.
    if (!HasAddedToken(format_.after_value, vocabulary_)) {
      // What reads the text ends it at the marker, whether a line end follows or not.
      const std::string marker = format_.after_value.substr(0, format_.after_value.find('\n'));
      Ir end(ir_.limits());
      const RuleId root = end.AddRule("text without the end");
      end.SetRule(root, AddTextWithout(end, std::span(&marker, 1)));
      end.set_root(root);
      ASSIGN_OR_RETURN(const auto set, StringSet::Create(end));
      tests.push_back({set});
    }
    if (tests.empty() && merged.min_length == 0 && merged.max_length < 0) return AddTextWithout(ir_, {});
    return AddStringProduct(ir_, tests, merged.min_length, merged.max_length,
                            SchemaCompiler::TogetherNeed(merged), StringSpelling::kRaw);
  }

  Ir& ir_;
  const JsonValue& root_;
  const Vocabulary& vocabulary_;
  const XmlFormat& format_;
  SchemaReader reader_;
  SchemaCompiler compiler_;
};

}  // namespace

bool IsXmlName(std::string_view name) {
  constexpr size_t kMostBytes = 512;
  if (name.empty() || name.size() > kMostBytes || name.front() == ' ' || name.back() == ' ') return false;
  return std::none_of(name.begin(), name.end(), [](unsigned char byte) {
    return byte < 0x20 || byte == 0x7f || byte == '"' || byte == '<' || byte == '>';
  });
}

XmlFormat DeepseekXml() {
  return {.before_name = "<｜DSML｜parameter name=\"",
          .before_string = "\" string=\"true\">",
          .before_json = "\" string=\"false\">",
          .after_value = "</｜DSML｜parameter>\n"};
}

XmlFormat GlmXml() {
  return {.before_name = "<arg_key>",
          .before_string = "</arg_key><arg_value>",
          .before_json = "</arg_key><arg_value>",
          .after_value = "</arg_value>"};
}

absl::StatusOr<NodeId> AddXmlParameters(Ir& ir, const JsonValue& schema, const Vocabulary& vocabulary,
                                        const XmlFormat& format, const JsonStyle& style) {
  return ParameterCompiler(ir, schema, vocabulary, format, style).Compile();
}

}  // namespace foredraft
