# Relative to kernels/cuda.
set(foredraft_cuda_sources
    argmax.cu
    capability.cc
    clamped_silu_mul.cu
    combine_experts.cu
    compress.cu
    cublaslt_gemm.cc
    cublaslt_tune.cc
    cuda_device.cc
    cuda_event.cc
    cuda_graph.cc
    cuda_memory.cc
    cuda_ops.cc
    cuda_probe.cu
    cuda_stream.cc
    dense.cu
    gemm.cu
    gemm_4bit.cu
    gemm_gate_up.cu
    gemm_gather.cu
    gemm_hopper.cu
    gemm_tile.cu
    group_rows.cu
    grouped_gemm.cu
    head_gemm.cu
    hyper_connections.cu
    kv_cache_rows.cu
    mla_decode.cu
    mla_decode_hopper.cu
    mla_decode_items.cu
    mla_prefill.cu
    packed_weight.cc
    quantize.cu
    random_weight.cu
    relax_drafts.cu
    rms_norm.cu
    route_experts.cu
    route_softplus.cu
    sample.cu
    select_entries.cu
    slots.cu
    tuning_file.cc
    v4_rows.cu
    window_attention.cu)

# Of these: the kernels for Hopper. They use instructions of sm_90a, and run on it alone.
set(foredraft_cuda_hopper_sources gemm_gate_up.cu gemm_hopper.cu mla_decode_hopper.cu)
