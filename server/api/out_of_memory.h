#pragma once

// Where a call runs out of memory: gRPC would swallow the exception and answer UNIMPLEMENTED without a text.

#include <new>

#include "absl/status/status.h"

namespace foredraft {

// What `function` returns, a Status or a StatusOr; RESOURCE_EXHAUSTED if it runs out of memory. What it had
// allocated is free again by then, so that the answer can be sent.
template <class Function>
auto OrOutOfMemory(Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "out of memory: the process may have no more now; send a smaller request, or this one later");
  }
}

}  // namespace foredraft
