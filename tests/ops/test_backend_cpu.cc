#include "tests/ops/test_backend.h"

namespace foredraft {

std::string TestBackend() { return "cpu"; }

}  // namespace foredraft
