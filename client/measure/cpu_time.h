#pragma once

namespace foredraft {

// User and system time of this process so far, threads that have ended included.
double ProcessCpuSeconds();

}  // namespace foredraft
