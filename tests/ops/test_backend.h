#ifndef FOREDRAFT_TESTS_OPS_TEST_BACKEND_H_
#define FOREDRAFT_TESTS_OPS_TEST_BACKEND_H_

#include <string>

namespace foredraft {

// The backend that a test binary tests: defined once per binary (test_backend_*.cc). foredraft_engine_harness
// links the CPU's definition into binaries without their own.
std::string TestBackend();

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_OPS_TEST_BACKEND_H_
