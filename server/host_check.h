#pragma once

// Finds what `serve` would refuse although the configuration is right in itself: files that are not there or
// are not what they should be, a CPU that lacks an instruction path. Opens no port and reads no weights.

#include "config/config_errors.h"
#include "config/config_reader.h"
#include "engine/model/model_config.h"

namespace foredraft {

// Adds each fault of this host with the place where its key was set. Keys that are refused already are left
// out.
void CheckHost(const LoadedConfig& loaded, ConfigErrors& errors);

// Adds an error for each fault of the model's files, as far as they are there: a config.json alone is enough
// to check a configuration. `model` is what config.json says. A directory with weights must have everything
// that `serve` needs.
void CheckModelFiles(const LoadedConfig& loaded, const ModelConfig& model, ConfigErrors& errors);

}  // namespace foredraft
