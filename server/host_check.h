#pragma once

// What `serve` would refuse on this host although the configuration is right in itself: files that are not
// there or are not what they should be, a CPU that lacks an instruction path. Opens no port.

#include "config/config_errors.h"
#include "config/config_reader.h"

namespace foredraft {

// Each fault is added with the place where its key was set. Keys that are refused already are left out.
void CheckHost(const LoadedConfig& loaded, ConfigErrors& errors);

}  // namespace foredraft
