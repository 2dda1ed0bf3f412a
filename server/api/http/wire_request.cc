#include "server/api/http/wire_request.h"

#include <utility>

namespace foredraft {

ClientRequest WireRequest::TakeChoice(int index) {
  ClientRequest choice = common;
  PromptInput& prompt = prompts[index / choices_per_prompt];
  if (choices_per_prompt == 1) {
    choice.input = std::move(prompt);  // no other choice has it
  } else {
    choice.input = prompt;
  }
  if (choice.sampling.seed.has_value()) *choice.sampling.seed += index % choices_per_prompt;
  return choice;
}

}  // namespace foredraft
