# Relative to kernels/cuda: all files of its folders but a library of its own and those of some builds.
file(GLOB foredraft_cuda_sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_LIST_DIR} ${CMAKE_CURRENT_LIST_DIR}/*/*.cu
     ${CMAKE_CURRENT_LIST_DIR}/*/*.cc)
list(REMOVE_ITEM foredraft_cuda_sources gemm/cublaslt_library.cc gemm/gemm_plan.cc device/spin_limit.cc)

# Of these: the kernels for Hopper. They use instructions of sm_90a, and run on it alone.
set(foredraft_cuda_hopper_sources gemm/gemm_gate_up.cu gemm/gemm_hopper.cu attention/mla_decode_fp8.cu
    attention/mla_decode_hopper.cu)
