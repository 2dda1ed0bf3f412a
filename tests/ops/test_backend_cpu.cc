#include "tests/ops/test_backend.h"

namespace foredraft {

std::string TestBackend() { return "cpu"; }

void UseDeviceOfRank(int) {}  // a CPU device is what its creator makes it

}  // namespace foredraft
