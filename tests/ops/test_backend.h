#ifndef FOREDRAFT_TESTS_OPS_TEST_BACKEND_H_
#define FOREDRAFT_TESTS_OPS_TEST_BACKEND_H_

#include <string>

namespace foredraft {

// The backend a test binary is about: defined once per binary (test_backend_*.cc); foredraft_engine_harness
// brings the CPU's for binaries that have none of their own.
std::string TestBackend();

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_OPS_TEST_BACKEND_H_
