# Relative to kernels/cuda.
set(foredraft_cuda_sources
    cuda_device.cc
    cuda_event.cc
    cuda_graph.cc
    cuda_memory.cc
    cuda_ops.cc
    cuda_probe.cu
    cuda_stream.cc
    gemm.cu
    gemm_tile.cu
    grouped_gemm.cu
    head_gemm.cu
    mla_decode.cu
    mla_decode_items.cu
    mla_prefill.cu
    packed_weight.cc
    quantize.cu)
