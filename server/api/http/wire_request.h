#pragma once

// A request of any wire over HTTP: what its choices share, its prompts, and how they are answered.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/api/client_request.h"

namespace foredraft {

class RequestValidator;

struct WireRequest {
  std::string model;  // empty: not named
  // The fields that all choices share, without the input. There is only one copy: a body may have 128
  // prompts.
  ClientRequest common;
  std::vector<PromptInput> prompts;
  int choices_per_prompt = 1;  // n
  bool stream = false;
  // Where set, nothing is generated: the answer is the body that this function makes of the request.
  std::function<absl::StatusOr<std::string>(const RequestValidator& validator, const WireRequest& request)>
      page;

  int choice_count() const { return static_cast<int>(prompts.size()) * choices_per_prompt; }
  const PromptInput& prompt_of(int index) const { return prompts[index / choices_per_prompt]; }
  // Returns choice `index` as a request of its own; may be called once for each choice, for several choices
  // at the same time. Choice i of a prompt has the request's seed plus i, so that the first is what n = 1
  // gives.
  ClientRequest TakeChoice(int index);
};

}  // namespace foredraft
