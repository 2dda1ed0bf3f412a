#pragma once

// Tools from a file, as OpenAI's clients write them.

#include <string>

#include "absl/status/status.h"
#include "foredraft/v1/generation.pb.h"

namespace foredraft {

// Adds the tools of the file, a JSON list of {"type": "function", "function": {...}} or of the functions
// alone: name, description, parameters. The daemon checks what they say. INVALID_ARGUMENT or NOT_FOUND name
// the path and what is wrong.
absl::Status ReadToolFile(const std::string& path, v1::Chat& chat);

}  // namespace foredraft
