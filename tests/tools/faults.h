#pragma once

// The faults that tests/tools/faults.cmake puts into copies of product sources.

#include <string_view>

namespace foredraft {

// The one that the copies have now; empty: none, and they do what the product does.
inline std::string_view present_fault;

inline bool HasFault(std::string_view name) { return present_fault == name; }

}  // namespace foredraft
