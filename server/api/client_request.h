#pragma once

// A generation request as a client sent it, independent of the wire: nothing is checked, and a field that the
// client left out is absent. Each wire reads its own messages into this; RequestValidator checks it.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "config/token_bias.h"
#include "grammar/compile.h"
#include "server/text/chat_message.h"
#include "server/text/field_notes.h"

namespace foredraft {

using ChatMessages = std::vector<ChatMessage>;
// Text, token ids or chat; monostate where the client sent none of them.
using PromptInput = std::variant<std::monostate, std::string, std::vector<int32_t>, ChatMessages>;

struct ClientSampling {
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::optional<uint64_t> seed;
  int32_t min_tokens = 0;
  std::vector<TokenBias> logit_bias;  // in any order
};

// What an output must be (grammar/compile.h).
struct ClientConstraint {
  std::string field;  // what its wire calls it, for errors: "constraint.json_schema", "response_format"
  std::optional<Constraint::Kind> kind;  // absent: the client sent a constraint that says nothing
  std::string source;                    // schema, expression, grammar or tag
  std::vector<std::string> choices;      // of kChoice
  bool compact = false;                  // JSON without white space
  bool from_first_token = false;         // holds also where the answer begins with thinking
};

struct ClientRequest {
  NotedWire wire = NotedWire::kOther;
  FieldNotes notes;        // the fields that its wire found without effect
  std::string request_id;  // empty: the server makes one
  PromptInput input;
  ChatChoices choices;  // chat input
  ChatTools tools;      // chat input
  std::optional<ClientConstraint> constraint;
  bool raw_text = false;       // chat input: the answer is not divided into thinking, text and calls
  bool parse_special = false;  // text input: special tokens written out in the text become those tokens
  ClientSampling sampling;
  bool add_bos = true;  // text input: BOS in front, if the tokenizer puts one there
  // Text and ids: keep only this many ids, the last of the prompt; -1: as many as the context has room for.
  std::optional<int32_t> truncate_prompt_tokens;
  std::optional<int32_t> max_tokens;
  bool lowers_max_tokens = false;  // to what the context has room for, if that is less
  std::vector<std::string> stop;
  bool keeps_stop = false;  // the text ends with the stop string that ended it
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  std::optional<int32_t> logprobs;
  std::optional<int32_t> max_draft_tokens;
  std::optional<int32_t> thinking_budget;  // tokens that the output may think; -1: any number
  bool strict_acceptance = false;
  int32_t priority = 0;    // -kMaxPriority..kMaxPriority
  std::string cache_salt;  // prompts share blocks only under the same salt
  std::optional<double> timeout_s;
};

}  // namespace foredraft
