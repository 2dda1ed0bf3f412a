# Relative to kernels/cuda.
set(foredraft_cuda_sources
    cuda_probe.cu)
