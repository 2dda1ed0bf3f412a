#pragma once

// Requests for engine tests: questions that abacus was not trained on, rendered as chat, some with a shared
// start.

#include <string>
#include <vector>

#include "scheduler/request.h"

namespace foredraft {

inline constexpr char kAbacusDir[] = "deploy/models/abacus";

struct RequestShape {
  int count = 20;
  std::string questions = "heldout.jsonl";  // in kAbacusDir
  bool sampled = false;                     // temperature 0.8 and top-p 0.95, one in four with penalties
  bool logprobs = false;
};

// Deterministic. Seeds are unique; prompts have 1 to about 150 tokens; max_tokens differ, some end by the
// model's EOS.
std::vector<Request> TestRequests(const RequestShape& shape);

}  // namespace foredraft
