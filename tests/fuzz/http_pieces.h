#pragma once

// The requests that some bytes of a connection hold, read in pieces, for the fuzz targets of HTTP.

#include <string>
#include <vector>

#include "server/http/http_limits.h"

namespace foredraft {

// Small enough for a fuzzer to reach.
HttpLimits FuzzedLimits();

// Each request with all that is read of it, and in the end a refusal or that more is needed. `first` bytes,
// then pieces of `piece`. Checks what a reader holds meanwhile.
std::vector<std::string> ReadInPieces(const std::string& bytes, size_t first, size_t piece);

// Checks that pieces do not matter: whole, byte by byte, and cut at any place that `choice` selects.
void CheckEverySplit(const std::string& bytes, unsigned char choice);

}  // namespace foredraft
