#pragma once

#include <string>

namespace foredraft {

// docs/configuration.md, written from the rows of config_fields.h.
std::string ConfigurationDocument();

// docs/tensorrt-llm.md: what becomes of TensorRT-LLM's keys that foredraft does not have.
std::string ForeignKeysDocument();

}  // namespace foredraft
