#pragma once

// The conversation in a request of Anthropic's Messages API: a system text, and messages of content blocks.

#include <string_view>

#include "absl/status/statusor.h"
#include "server/api/anthropic/messages_tools.h"
#include "server/api/conversation/message_gatherer.h"
#include "server/api/fields/field_reader.h"

namespace foredraft {

// Reads `system` and `messages`. `body` is the text that `fields` reads: inputs of calls are slices of it.
// `tools` has read the request's list. INVALID_ARGUMENT names the block and its field.
absl::StatusOr<GatheredMessages> ReadContentBlocks(FieldReader& fields, std::string_view body,
                                                   MessagesTools& tools);

}  // namespace foredraft
