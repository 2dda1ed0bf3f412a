#pragma once

// Tokenizers of single bytes with the markup of the families, and what their templates are recognised by.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "server/text/byte_alphabet.h"
#include "server/text/tokenizer.h"
#include "server/text/utf8.h"

namespace foredraft {

// The bytes are ids 0..255; `added` are ids 300...
inline std::unique_ptr<Tokenizer> MakeTokenizer(const std::vector<std::string>& added,
                                                const nlohmann::json& config) {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    AppendUtf8(ByteAlphabet()[byte], letter);
    vocab[letter] = byte;
  }
  nlohmann::json added_tokens = nlohmann::json::array();
  for (const std::string& content : added) {
    added_tokens.push_back({{"id", 300 + added_tokens.size()}, {"content", content}, {"special", true}});
  }
  const nlohmann::json json = {
      {"added_tokens", added_tokens},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  auto tokenizer = Tokenizer::Parse(json.dump(), config.dump());
  CHECK(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// What tells V3.1's template from R1's, those of the GLMs from each other, and Kimi-K2's from others.
inline constexpr char kV31Template[] =
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}'<｜User｜>' '<｜Assistant｜>' "
    "'<｜end▁of▁sentence｜>' '<think>' '</think>'";
inline constexpr char kGlm47Template[] =
    "[gMASK]<sop> <|user|>{{ m }} <|system|>{{ m }} <|assistant|> '<think>' + reasoning_content.strip() "
    "'</think>' if not enable_thinking else '<think>'";
inline constexpr char kGlm52Template[] =
    "[gMASK]<sop> 'high' if reasoning_effort == 'high' else 'max' <|system|>Reasoning Effort: {{ e }} "
    "tool['function'] <|user|>{{ m }} <|system|>{{ m }} <|assistant|> (clear_thinking is defined and not "
    "clear_thinking) '<think>' + reasoning_content '<think></think>' if not enable_thinking else '<think>'";
inline constexpr char kGlm53Template[] =
    "[gMASK]<sop> reasoning_effort in ['low', 'high'] else 'max' <|system|>Reasoning Effort: {{ e }} "
    "clear_thinking if clear_thinking is defined else false tool['function'] <|user|>{{ m }} <|system|>{{ m "
    "}} "
    "<|assistant|> '<think>' + reasoning_content '<think></think>' <|assistant|>{{ '<think>' }}";
inline constexpr char kKimiTemplate[] =
    "<|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }} <|im_user|> "
    "<|im_assistant|> You are Kimi, an AI assistant created by Moonshot AI. <|tool_calls_section_begin|> "
    "## Return of ";

inline constexpr char kKimi26Template[] =
    "{%- set preserve_thinking = preserve_thinking | default(false) -%} last_non_tool_call_assistant_msg "
    "<|im_system|>tool_declare<|im_middle|>{{ tools_ts_str }} {{ tools | tojson(separators=(',', ':')) }} "
    "<|im_user|> <|im_assistant|> <think></think> <|tool_calls_section_begin|> ## Return of {%- if thinking "
    "is "
    "defined and thinking is false -%} <think></think> {%- else -%} <think>";

// The added tokens of each kind of checkpoint. `has_call_tokens` false: calls are spelled out in bytes.
inline std::unique_ptr<Tokenizer> DeepseekTokenizer(const char* chat_template, bool has_call_tokens = true) {
  nlohmann::json config = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  if (chat_template != nullptr) config["chat_template"] = chat_template;
  std::vector<std::string> added = {"<s>", "</s>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"};
  if (has_call_tokens) {
    for (const char* content :
         {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
          "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>",
          "<｜tool▁output▁end｜>", "｜DSML｜"}) {
      added.emplace_back(content);
    }
  }
  return MakeTokenizer(added, config);
}

inline std::unique_ptr<Tokenizer> GlmTokenizer(bool has_call_tokens = true,
                                               const char* chat_template = kGlm47Template) {
  std::vector<std::string> added = {"[gMASK]",       "<sop>",           "<|system|>", "<|user|>",
                                    "<|assistant|>", "<|observation|>", "<think>",    "</think>"};
  if (has_call_tokens) {
    for (const char* content : {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                                "</arg_value>", "<tool_response>", "</tool_response>"}) {
      added.emplace_back(content);
    }
  }
  return MakeTokenizer(added, {{"chat_template", chat_template}});
}

inline std::unique_ptr<Tokenizer> KimiTokenizer(const std::string& chat_template = kKimiTemplate) {
  return MakeTokenizer({"<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>",
                        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                        "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"},
                       {{"chat_template", chat_template}});
}

}  // namespace foredraft
