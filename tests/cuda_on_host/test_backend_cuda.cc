#include "tests/ops/op_rig.h"

namespace foredraft {

std::string TestBackend() { return "cuda"; }

}  // namespace foredraft
