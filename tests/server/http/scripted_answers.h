#pragma once

// Chat answers as the output thread gives them, from a script of their parts and cut at will; and what
// clients of Anthropic's and OpenAI's libraries join from the events of a stream.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/api/http/answer_format.h"

namespace foredraft {

struct ScriptedPart {
  AnswerRun::Part part;
  std::string text;       // of a call: its arguments
  std::string name = {};  // of a call
  bool complete = true;   // of a call
};

struct ScriptedAnswer {
  const char* name;
  std::vector<ScriptedPart> parts;
  OutputEnd end = {.finish = FinishReason::kStop};
};

// Every way in which an answer can go: with thinking, text, calls, text behind calls, cut, stopped, empty.
std::vector<ScriptedAnswer> ScriptedAnswers();
// The answer as deltas of at most `bytes` bytes; all of it in one where that is 0.
std::vector<OutputDelta> DeltasOf(const ScriptedAnswer& answer, size_t bytes);
OutputDelta WholeOf(const ScriptedAnswer& answer);
// Names, numbers and times that do not change.
AnswerLabels TestLabels();

// All events of the answer, cut so.
std::string StreamOf(AnswerFormat& format, const ScriptedAnswer& answer, size_t bytes);

struct SentEvent {
  std::string type;
  nlohmann::ordered_json data;
};
// Fails the process where the text is no list of events, or a type is not the data's.
std::vector<SentEvent> SentEvents(const std::string& stream);

// The message that Anthropic's library makes of a stream. Fails the process on an event out of order.
nlohmann::ordered_json JoinedMessage(const std::vector<SentEvent>& events);

// The response that the events of OpenAI's Responses API end with. Fails the process where they are out of
// order, a number is missing, or the pieces of an item are not what its end says.
nlohmann::ordered_json JoinedResponse(const std::vector<SentEvent>& events);

}  // namespace foredraft
