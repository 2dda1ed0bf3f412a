#pragma once

// Makes the scheduler's constraint from what a request asks of its output.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/request.h"
#include "server/api/client_request.h"
#include "server/constraints/constraint_compiler.h"
#include "server/text/chat_format.h"
#include "server/text/tokenizer.h"

namespace foredraft {

// Whether the output is constrained: by a constraint, forced calls, or tools whose schema must be followed.
bool IsConstrained(const ClientRequest& client);

// Refuses a source that Compile would refuse for its length.
absl::Status CheckConstraintLength(const ClientRequest& client, ConstraintCompiler* compiler);

// Refuses fields that cannot be combined, before the prompt is tokenized. `compiler` is null where the server
// constrains no outputs. INVALID_ARGUMENT names the field, its value and what is allowed.
absl::Status CheckConstraint(const ClientRequest& client, ConstraintCompiler* compiler);

// The constraint of a request that CheckConstraint has let pass, once its prompt, phase and stop ids are in
// `request`; without a grammar if nothing is constrained. Compiles, so it may take up to a second.
// `chat_format` is set where the input is chat. Fails as ConstraintCompiler::Compile does (INVALID_ARGUMENT,
// FAILED_PRECONDITION).
absl::StatusOr<RequestConstraint> MakeConstraint(const ClientRequest& client, const Request& request,
                                                 const ChatFormat* chat_format, const Tokenizer& tokenizer,
                                                 ConstraintCompiler* compiler);

}  // namespace foredraft
