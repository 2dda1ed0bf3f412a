#pragma once

#include <string>

#include "engine/model/model_config.h"

namespace foredraft {

// A tokenizer.json for a random checkpoint: one token per byte, and the chat markup, as far as the vocabulary
// has room.
std::string SynthTokenizerJson(const ModelConfig& config);

}  // namespace foredraft
