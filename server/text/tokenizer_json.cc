#include "server/text/tokenizer_json.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "config/json_text.h"

namespace foredraft {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxTokenId = (1 << 20) - 1;  // four times the largest vocabulary known; bounds memory
constexpr int kMaxNesting = 16;                 // of Sequences

// GPT-2's own split, which ByteLevel applies where use_regex is set.
constexpr char kByteLevelRegex[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// A JSON value and its path, for messages.
struct Field {
  const Json& value;
  std::string path;

  // A missing key reads as null.
  Field operator[](const char* key) const {
    static const Json null;
    const bool found = value.is_object() && value.contains(key);
    return {found ? value[key] : null, path.empty() ? key : absl::StrCat(path, ".", key)};
  }
  Field At(size_t index) const { return {value[index], absl::StrFormat("%s[%d]", path, index)}; }

  absl::Status Refuse(std::string_view allowed) const {
    return absl::InvalidArgumentError(absl::StrFormat("%s: %s, allowed %s", path, ShowJson(value), allowed));
  }
};

absl::StatusOr<std::string> ReadString(const Field& field) {
  if (!field.value.is_string()) return field.Refuse("a string");
  return field.value.get<std::string>();
}

absl::StatusOr<bool> ReadBool(const Field& field, bool absent) {
  if (field.value.is_null()) return absent;
  if (!field.value.is_boolean()) return field.Refuse("true, false");
  return field.value.get<bool>();
}

absl::StatusOr<int32_t> ReadTokenId(const Field& field) {
  if (!field.value.is_number_integer()) return field.Refuse("a token id");
  const int64_t id = field.value.is_number_unsigned() && field.value.get<uint64_t>() > INT32_MAX
                         ? INT32_MAX
                         : field.value.get<int64_t>();
  if (id < 0 || id > kMaxTokenId) return field.Refuse(absl::StrCat("0..", kMaxTokenId));
  return static_cast<int32_t>(id);
}

absl::Status RefuseTrue(const Field& field) {
  ASSIGN_OR_RETURN(const bool set, ReadBool(field, false));
  return set ? field.Refuse("false") : absl::OkStatus();
}

absl::Status RefuseText(const Field& field) {
  return field.value.is_null() || field.value == "" ? absl::OkStatus() : field.Refuse("null");
}

std::string TypeOf(const Field& field) {
  const Json& type = field["type"].value;
  return type.is_string() ? type.get<std::string>() : "";
}

// Stores `content` at `id`; an id has one content.
absl::Status StoreToken(const Field& field, int32_t id, const std::string& content, TokenizerJson& out) {
  if (content.empty()) return field.Refuse("a token that is not empty");
  if (static_cast<size_t>(id) >= out.tokens.size()) out.tokens.resize(id + 1);
  std::string& token = out.tokens[id];
  if (!token.empty() && token != content) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: \"%s\" has id %d, which \"%s\" has already", field.path, content, id, token));
  }
  token = content;
  return absl::OkStatus();
}

absl::Status ReadMerge(const Field& field, TokenizerJson& out) {
  const Json& value = field.value;
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    out.merges.emplace_back(value[0].get<std::string>(), value[1].get<std::string>());
    return absl::OkStatus();
  }
  if (value.is_string()) {
    const std::string both = value.get<std::string>();
    const size_t space = both.find(' ');
    if (space != std::string::npos && both.find(' ', space + 1) == std::string::npos) {
      out.merges.emplace_back(both.substr(0, space), both.substr(space + 1));
      return absl::OkStatus();
    }
  }
  return field.Refuse("two tokens");
}

absl::Status ReadModel(const Field& model, TokenizerJson& out) {
  if (TypeOf(model) != "BPE") return model["type"].Refuse("BPE");
  RETURN_IF_ERROR(RefuseTrue(model["byte_fallback"]));
  RETURN_IF_ERROR(RefuseText(model["continuing_subword_prefix"]));
  RETURN_IF_ERROR(RefuseText(model["end_of_word_suffix"]));
  const Field dropout = model["dropout"];
  if (!dropout.value.is_null() && dropout.value != 0) return dropout.Refuse("null");
  ASSIGN_OR_RETURN(out.ignore_merges, ReadBool(model["ignore_merges"], false));

  const Field vocab = model["vocab"];
  if (!vocab.value.is_object()) return vocab.Refuse("an object of tokens and ids");
  for (const auto& [content, id] : vocab.value.items()) {
    const Field entry = {id, absl::StrFormat("model.vocab[\"%s\"]", content)};
    ASSIGN_OR_RETURN(const int32_t token_id, ReadTokenId(entry));
    RETURN_IF_ERROR(StoreToken(entry, token_id, content, out));
  }
  const Field merges = model["merges"];
  if (!merges.value.is_array()) return merges.Refuse("a list of merges");
  for (size_t i = 0; i < merges.value.size(); ++i) RETURN_IF_ERROR(ReadMerge(merges.At(i), out));
  return absl::OkStatus();
}

// Reads an added token except its id.
absl::StatusOr<TokenizerJson::AddedToken> ReadAddedToken(const Field& entry) {
  TokenizerJson::AddedToken token = {.id = -1};
  ASSIGN_OR_RETURN(token.content, ReadString(entry["content"]));
  ASSIGN_OR_RETURN(token.special, ReadBool(entry["special"], false));
  ASSIGN_OR_RETURN(token.normalized, ReadBool(entry["normalized"], !token.special));
  for (const char* flag : {"lstrip", "rstrip", "single_word"}) RETURN_IF_ERROR(RefuseTrue(entry[flag]));
  return token;
}

absl::Status ReadAddedTokens(const Field& list, const Field& vocab, TokenizerJson& out) {
  if (list.value.is_null()) return absl::OkStatus();
  if (!list.value.is_array()) return list.Refuse("a list");
  absl::flat_hash_set<std::string> contents;
  for (size_t i = 0; i < list.value.size(); ++i) {
    const Field entry = list.At(i);
    ASSIGN_OR_RETURN(TokenizerJson::AddedToken token, ReadAddedToken(entry));
    ASSIGN_OR_RETURN(token.id, ReadTokenId(entry["id"]));
    const auto known = vocab.value.find(token.content);
    if (known != vocab.value.end() && *known != token.id) {
      return entry["id"].Refuse(absl::StrCat(known->get<int64_t>(), ", its id in model.vocab"));
    }
    if (!contents.insert(token.content).second) return entry["content"].Refuse("each token once");
    RETURN_IF_ERROR(StoreToken(entry, token.id, token.content, out));
    out.added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// Accepts no normalizer, or one that does nothing.
absl::Status ReadNormalizer(const Field& normalizer) {
  if (normalizer.value.is_null()) return absl::OkStatus();
  const Field steps = normalizer["normalizers"];
  if (TypeOf(normalizer) == "Sequence" && steps.value.is_array()) {
    return steps.value.empty() ? absl::OkStatus() : steps.Refuse("an empty list");
  }
  return normalizer["type"].Refuse("no normalizer, an empty Sequence");
}

absl::Status ReadSplit(const Field& split, TokenizerJson& out) {
  if (split["behavior"].value != "Isolated") return split["behavior"].Refuse("Isolated");
  RETURN_IF_ERROR(RefuseTrue(split["invert"]));
  const Field pattern = split["pattern"];
  for (const char* kind : {"Regex", "String"}) {
    if (!pattern[kind].value.is_string()) continue;
    out.splits.push_back({pattern[kind].value.get<std::string>(), kind == std::string_view("String")});
    return absl::OkStatus();
  }
  return pattern.Refuse("a Regex, a String");
}

// Sets `byte_level` at the ByteLevel step, which must be the last.
absl::Status ReadPreTokenizer(const Field& field, int depth, bool& byte_level, TokenizerJson& out) {
  const std::string type = TypeOf(field);
  if (byte_level) return field["type"].Refuse("nothing after ByteLevel");
  if (type == "Split") return ReadSplit(field, out);
  if (type == "ByteLevel") {
    byte_level = true;
    ASSIGN_OR_RETURN(const bool add_prefix_space, ReadBool(field["add_prefix_space"], true));
    if (add_prefix_space) return field["add_prefix_space"].Refuse("false");
    ASSIGN_OR_RETURN(const bool use_regex, ReadBool(field["use_regex"], true));
    if (use_regex) out.splits.push_back({kByteLevelRegex, false});
    return absl::OkStatus();
  }
  const Field steps = field["pretokenizers"];
  if (type != "Sequence" || !steps.value.is_array() || depth == kMaxNesting) {
    return field["type"].Refuse("Split, ByteLevel, a Sequence of them");
  }
  for (size_t i = 0; i < steps.value.size(); ++i) {
    RETURN_IF_ERROR(ReadPreTokenizer(steps.At(i), depth + 1, byte_level, out));
  }
  return absl::OkStatus();
}

absl::Status ReadDecoder(const Field& decoder) {
  return TypeOf(decoder) == "ByteLevel" ? absl::OkStatus() : decoder["type"].Refuse("ByteLevel");
}

// Reads a template that puts one token, or none, before the text.
absl::Status ReadTemplate(const Field& field, TokenizerJson& out) {
  const Field single = field["single"];
  const size_t count = single.value.is_array() ? single.value.size() : 0;
  const bool text_last = count > 0 && single.At(count - 1)["Sequence"].value.is_object();
  const bool prefixed = count == 2 && single.At(0)["SpecialToken"].value.is_object();
  if (!text_last || (count != 1 && !prefixed)) {
    return single.Refuse("one special token or none, then the text");
  }
  if (!prefixed) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string name, ReadString(single.At(0)["SpecialToken"]["id"]));
  const Field ids = field["special_tokens"][name.c_str()]["ids"];
  if (!ids.value.is_array() || ids.value.size() != 1) return ids.Refuse("a list of one id");
  ASSIGN_OR_RETURN(out.bos_id, ReadTokenId(ids.At(0)));
  const bool known = static_cast<size_t>(out.bos_id) < out.tokens.size() && !out.tokens[out.bos_id].empty();
  return known ? absl::OkStatus() : ids.At(0).Refuse("the id of a token");
}

absl::Status ReadPostProcessor(const Field& field, int depth, TokenizerJson& out) {
  const std::string type = TypeOf(field);
  if (field.value.is_null() || type == "ByteLevel") return absl::OkStatus();  // ByteLevel moves offsets only
  if (type == "TemplateProcessing") return ReadTemplate(field, out);
  const Field steps = field["processors"];
  if (type != "Sequence" || !steps.value.is_array() || depth == kMaxNesting) {
    return field["type"].Refuse("ByteLevel, TemplateProcessing, a Sequence of them");
  }
  for (size_t i = 0; i < steps.value.size(); ++i) {
    RETURN_IF_ERROR(ReadPostProcessor(steps.At(i), depth + 1, out));
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ParseObject(std::string_view text) {
  ASSIGN_OR_RETURN(Json json, ParseJson(text, "text"));
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  return json;
}

// Reads "<s>" or {"content": "<s>", ...}.
absl::StatusOr<std::string> ReadTokenContent(const Field& field) {
  if (field.value.is_null()) return std::string();
  return ReadString(field.value.is_object() ? field["content"] : field);
}

}  // namespace

absl::StatusOr<TokenizerJson> ReadTokenizerJson(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  const Field root = {json, ""};
  TokenizerJson out;
  RETURN_IF_ERROR(ReadModel(root["model"], out));
  RETURN_IF_ERROR(ReadAddedTokens(root["added_tokens"], root["model"]["vocab"], out));
  RETURN_IF_ERROR(ReadNormalizer(root["normalizer"]));
  bool byte_level = false;
  RETURN_IF_ERROR(ReadPreTokenizer(root["pre_tokenizer"], 0, byte_level, out));
  if (!byte_level) return root["pre_tokenizer"].Refuse("a ByteLevel as the last step");
  RETURN_IF_ERROR(ReadDecoder(root["decoder"]));
  RETURN_IF_ERROR(ReadPostProcessor(root["post_processor"], 0, out));
  return out;
}

namespace {

// The member "chat_template": a text, or a list of {"name", "template"}.
ChatTemplates TemplatesOf(const Json& json) {
  ChatTemplates templates;
  const auto found = json.find("chat_template");
  if (found == json.end()) return templates;
  if (found->is_string()) templates.chat = found->get<std::string>();
  if (!found->is_array()) return templates;
  templates.chat = "";
  for (const Json& one : *found) {
    if (!one.is_object() || !one.contains("template") || !one["template"].is_string()) continue;
    if (one.value("name", Json()) == "default") templates.chat = one["template"].get<std::string>();
    if (one.value("name", Json()) == "tool_use") templates.tool_use = one["template"].get<std::string>();
  }
  return templates;
}

}  // namespace

absl::StatusOr<ChatTemplates> ReadChatTemplateJson(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  return TemplatesOf(json);
}

absl::StatusOr<std::vector<TokenizerJson::AddedToken>> ReadAddedTokensDecoder(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  const Field list = Field{json, ""}["added_tokens_decoder"];
  std::vector<TokenizerJson::AddedToken> tokens;
  if (list.value.is_null()) return tokens;
  if (!list.value.is_object()) return list.Refuse("an object of tokens by their ids");
  for (const auto& [id, value] : list.value.items()) {
    const Field entry = {value, absl::StrCat("added_tokens_decoder.", ShowKey(id))};
    ASSIGN_OR_RETURN(TokenizerJson::AddedToken token, ReadAddedToken(entry));
    if (token.content.empty()) return entry["content"].Refuse("a token that is not empty");
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), token.id);
    if (error != std::errc() || std::to_string(token.id) != id || token.id < 0 || token.id > kMaxTokenId) {
      return entry.Refuse(absl::StrCat("ids 0..", kMaxTokenId));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

absl::StatusOr<TokenizerConfigJson> ReadTokenizerConfigJson(std::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseObject(text));
  const Field root = {json, ""};
  TokenizerConfigJson out;
  const Field add_bos = root["add_bos_token"];
  if (!add_bos.value.is_null()) {
    ASSIGN_OR_RETURN(out.add_bos_token, ReadBool(add_bos, false));
  }
  RETURN_IF_ERROR(RefuseTrue(root["add_eos_token"]));
  ASSIGN_OR_RETURN(out.bos_token, ReadTokenContent(root["bos_token"]));
  ASSIGN_OR_RETURN(out.eos_token, ReadTokenContent(root["eos_token"]));
  out.templates = TemplatesOf(json);
  return out;
}

}  // namespace foredraft
