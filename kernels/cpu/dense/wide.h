#pragma once

// FOREDRAFT_WIDE compiles a function for several register widths; the loader chooses the widest that the
// machine supports. For loops over a row whose bits do not depend on the width: element-wise ones (nothing is
// fused, see cmake/Foredraft.cmake), or sums with a fixed number of accumulators (vector_math.h). Only for
// functions with internal linkage: if the linker merged copies, an older machine could get one that it cannot
// run. Off under sanitizers, whose runtimes are not initialised yet when the loader resolves the function.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FOREDRAFT_WIDE __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FOREDRAFT_WIDE
#endif
