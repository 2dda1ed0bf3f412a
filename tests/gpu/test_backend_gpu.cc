#include "tests/ops/test_backend.h"

namespace foredraft {

std::string TestBackend() { return "cuda"; }

}  // namespace foredraft
