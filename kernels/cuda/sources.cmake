# Relative to kernels/cuda.
set(foredraft_cuda_sources
    cuda_device.cc
    cuda_event.cc
    cuda_graph.cc
    cuda_memory.cc
    cuda_ops.cc
    cuda_probe.cu
    cuda_stream.cc
    packed_weight.cc)
