#include "grammar/xml_parameters.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "grammar/char_set.h"
#include "grammar/json_strings.h"
#include "grammar/marked_text.h"
#include "grammar/schema_compiler.h"
#include "grammar/schema_reader.h"

namespace foredraft {
namespace {

// {"type": [...]} of strings alone, or of all other types.
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
    std::vector<NodeId> parts;
    for (size_t n = 0; n < merged.names.size(); ++n) {
      const std::string& name = merged.names[n];
      if (!IsXmlName(name)) return RefuseName(name);
      ASSIGN_OR_RETURN(const Conjunction value, reader_.PropertyOf(all, name));
      ASSIGN_OR_RETURN(const NodeId parameter, Parameter(ir_.Literal(name), value));
      parts.push_back(merged.is_required[n] ? parameter : ir_.Optional(parameter));
    }
    if (merged.names.empty() && IsDictionary(all)) {
      ASSIGN_OR_RETURN(const Conjunction value, reader_.OthersOf(all, {}));
      if (value.never == nullptr) {
        ASSIGN_OR_RETURN(const NodeId parameter, Parameter(AnyName(), value));
        parts.push_back(ir_.Repeat(parameter, 0, -1));
      }
    }
    return ir_.Sequence(parts);
  }

 private:
  NodeId Literal(const std::string& text) { return AddMarkedLiteral(ir_, text, vocabulary_); }

  // Next to declared properties, others are not offered. Without declared ones they are, because the object
  // would otherwise always be empty; `"properties": {}` asks for just that.
  static bool IsDictionary(const Conjunction& all) {
    bool says_declared = false;
    for (const SchemaPart& part : all.parts) {
      if (part.schema->Find("additionalProperties") != nullptr) return true;
      says_declared |= part.schema->Find("properties") != nullptr;
    }
    return !says_declared;
  }

  absl::Status RefuseName(const std::string& name) const {
    return RefuseSchema(root_,
                        absl::StrFormat("the property %s is not supported in this style, allowed names "
                                        "without quotes, angle brackets, line breaks and outer spaces",
                                        QuoteJson(name.substr(0, 64))));
  }

  // Names of up to 128 characters that IsXmlName accepts.
  NodeId AnyName() {
    constexpr int kMostInnerChars = 126;
    CharSet excluded = CharSet::Of(0, 0x1f);
    for (const char c : {'"', '<', '>', '\x7f'}) excluded.Add(c, c);
    const NodeId inner = ir_.Characters(excluded.Complement());
    excluded.Add(' ', ' ');
    const NodeId outer = ir_.Characters(excluded.Complement());
    const NodeId rest = ir_.Sequence({ir_.Repeat(inner, 0, kMostInnerChars), outer});
    return ir_.Sequence({outer, ir_.Optional(rest)});
  }

  absl::StatusOr<NodeId> Parameter(NodeId name, const Conjunction& value) {
    Conjunction strings = value, others = value;
    RETURN_IF_ERROR(reader_.Expand(StringsOnly(), strings));
    RETURN_IF_ERROR(reader_.Expand(NoStrings(), others));
    ASSIGN_OR_RETURN(const NodeId raw, RawString(strings));
    ASSIGN_OR_RETURN(const NodeId json, compiler_.CompileValue(others));
    return ir_.Sequence({Literal(format_.before_name), name,
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
    ASSIGN_OR_RETURN(auto tests, reader_.StringTests(merged));
    // The text ends at the marker after it, so it may not contain the marker.
    if (!HasAddedToken(format_.after_value, vocabulary_)) {
      // A reader ends the text at the marker, with or without a line end after it.
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
