#pragma once

// The ops: what a backend computes. A backend is a table of function pointers; a model is a sequence of
// calls. kernels/ops/list.inc lists the ops; the headers beside it describe their parameters.
//
// Rules (docs/invariants.md, row-independence):
//  - a row's result depends on that row's inputs alone, bit for bit: not on the number of rows, the row's
//    index, the other rows' requests, or the number of threads;
//  - rows of idle slots (slot -1) are skipped: no cache write, no state change;
//  - parameters are trivially copyable, because a graph node stores them; outputs come first;
//  - an op called on a capturing stream is recorded, not run;
//  - with zero rows an op does nothing.
//
// Letters in shapes: rows R, hidden D, heads H, vocabulary V, experts E, bucket B, draft_len K. A decode step
// is padded to a bucket of B seats; a seat holds a live slot, or -1 (padding).

#include "kernels/ops/attention.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/draft_block.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/slots.h"

namespace foredraft {

class Stream;

template <class Params>
using Op = void (*)(Stream& stream, const Params& params);

// A backend's table; it has every op.
struct Ops {
#define OP(name, Stem) Op<Stem##Params> name;
#include "kernels/ops/list.inc"
};

}  // namespace foredraft
