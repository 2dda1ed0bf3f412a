#ifndef FOREDRAFT_KERNELS_OP_H_
#define FOREDRAFT_KERNELS_OP_H_

namespace foredraft {

class Stream;

// An entry of a backend's table of ops (kernels/ops.h).
template <class Params>
using Op = void (*)(Stream& stream, const Params& params);

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_OP_H_
