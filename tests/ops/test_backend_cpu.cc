#include "tests/ops/op_rig.h"

namespace foredraft {

std::string TestBackend() { return "cpu"; }

}  // namespace foredraft
