#ifndef FOREDRAFT_KERNELS_CPU_WIDE_H_
#define FOREDRAFT_KERNELS_CPU_WIDE_H_

// FOREDRAFT_WIDE: compiles a function for several register widths, of which the loader takes the widest the
// machine has. For loops over a row whose bits do not depend on the width: one element after the other
// (nothing is fused, see cmake/Foredraft.cmake), or sums in lanes of their own (vector_math.h). Only for
// functions of one file: of a function that linkers merge, a lesser machine could get the wrong copy.
// The sanitizers' runtimes are not ready when the loader asks.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FOREDRAFT_WIDE __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FOREDRAFT_WIDE
#endif

#endif  // FOREDRAFT_KERNELS_CPU_WIDE_H_
