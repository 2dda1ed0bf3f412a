#pragma once

// What a request asks of its output, as the scheduler's constraint.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/request.h"
#include "server/api/client_request.h"
#include "server/constraints/constraint_compiler.h"
#include "server/text/chat_format.h"
#include "server/text/tokenizer.h"

namespace foredraft {

// Whether not every output is allowed: a constraint, forced calls, or tools whose schema must be followed.
bool IsConstrained(const ClientRequest& client);

// Refuses a source that Compile would refuse for its length.
absl::Status CheckConstraintLength(const ClientRequest& client, ConstraintCompiler* compiler);

// Refuses what does not go together, before the prompt is tokenized. `compiler` null: nothing is constrained
// here. INVALID_ARGUMENT names the field, its value and what is allowed.
absl::Status CheckConstraint(const ClientRequest& client, ConstraintCompiler* compiler);

// The constraint of a request that CheckConstraint has let pass, once its prompt, phase and stop ids are in
// `request`; without a grammar where nothing is constrained. Compiles, so it may take up to a second.
// `chat_format` is set where the input is chat. INVALID_ARGUMENT, FAILED_PRECONDITION:
// ConstraintCompiler::Compile.
absl::StatusOr<RequestConstraint> MakeConstraint(const ClientRequest& client, const Request& request,
                                                 const ChatFormat* chat_format, const Tokenizer& tokenizer,
                                                 ConstraintCompiler* compiler);

}  // namespace foredraft
