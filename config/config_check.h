#pragma once

#include <string>

#include "config/config_errors.h"
#include "config/loaded_config.h"

namespace foredraft {

// Checks keys that must agree with each other, except those that `errors` has already.
void CheckConfig(const LoadedConfig& loaded, ConfigErrors& errors);

// True for 127.x.y.z:port, localhost:port, [::1]:port. A name that merely begins like these is no loopback
// address.
bool IsLoopback(const std::string& address);
// True for loopback and for unix:path, which other hosts cannot reach either.
bool IsLocal(const std::string& address);

}  // namespace foredraft
