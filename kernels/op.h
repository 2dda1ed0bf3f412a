#pragma once

namespace foredraft {

class Stream;

// An entry of a backend's table of ops (kernels/ops.h).
template <class Params>
using Op = void (*)(Stream& stream, const Params& params);

}  // namespace foredraft
