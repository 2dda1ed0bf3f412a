#pragma once

#include <string>

namespace foredraft {

// The backend that a test binary tests: defined once per binary (test_backend_*.cc). foredraft_engine_harness
// links the CPU's definition into binaries without their own.
std::string TestBackend();

// From now on the calling thread creates devices, streams and memory on the device of `rank`: where ranks are
// threads, each has its own, as far as there are enough.
void UseDeviceOfRank(int rank);

}  // namespace foredraft
