#pragma once

// RETURN_IF_ERROR(expression): returns the absl::Status if it is not ok.
// ASSIGN_OR_RETURN(lhs, expression): unwraps an absl::StatusOr or returns its status.

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#define FOREDRAFT_CONCAT_INNER(a, b) a##b
#define FOREDRAFT_CONCAT(a, b) FOREDRAFT_CONCAT_INNER(a, b)

#define ASSIGN_OR_RETURN(lhs, expression) \
  FOREDRAFT_ASSIGN_OR_RETURN(FOREDRAFT_CONCAT(status_or_, __LINE__), lhs, expression)
#define FOREDRAFT_ASSIGN_OR_RETURN(temporary, lhs, expression) \
  auto temporary = (expression);                               \
  if (!temporary.ok()) return temporary.status();              \
  lhs = *std::move(temporary)
