#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "foredraft/v1/generation.grpc.pb.h"

namespace foredraft {

// The text of each token alone, from the daemon. A part of a character decodes to U+FFFD, a special token to
// nothing. Ends at the first call that fails: the texts are an addition to what was generated.
std::map<int32_t, std::string> TokenTexts(v1::GenerationService::Stub& stub, const std::set<int32_t>& ids);

}  // namespace foredraft
