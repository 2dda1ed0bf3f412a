#pragma once

// CPU seconds of the threads of this process.

#include <map>
#include <string>

namespace foredraft {

// By thread name; the sum if several threads have it. Threads that have ended are not included.
std::map<std::string, double> ThreadSeconds();

}  // namespace foredraft
