#pragma once

// The served model as OpenAI's and Anthropic's clients list it, and the daemon's version.

#include <cstdint>
#include <string>

#include "server/api/model_card.h"

namespace foredraft {

// `created`: seconds since the epoch.
std::string ModelsBody(const ModelCard& card, int64_t created);
std::string ModelBody(const ModelCard& card, int64_t created);
std::string VersionBody(const ModelCard& card);

}  // namespace foredraft
