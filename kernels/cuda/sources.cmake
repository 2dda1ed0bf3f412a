# Relative to kernels/cuda.
set(foredraft_cuda_sources
    sample/argmax.cu
    device/capability.cc
    dense/clamped_silu_mul.cu
    moe/combine_experts.cu
    attention/compress.cu
    gemm/cublaslt_gemm.cc
    gemm/cublaslt_tune.cc
    device/cuda_device.cc
    device/cuda_event.cc
    device/cuda_graph.cc
    device/cuda_memory.cc
    device/cuda_probe.cu
    device/cuda_stream.cc
    dense/dense.cu
    gemm/gemm.cu
    gemm/gemm_4bit.cu
    gemm/gemm_gate_up.cu
    gemm/gemm_gather.cu
    gemm/gemm_hopper.cu
    gemm/gemm_tile.cu
    moe/group_rows.cu
    gemm/grouped_gemm.cu
    gemm/head_gemm.cu
    dense/hyper_connections.cu
    attention/kv_cache_rows.cu
    attention/mla_decode.cu
    attention/mla_decode_hopper.cu
    attention/mla_decode_items.cu
    attention/mla_prefill.cu
    gemm/packed_weight.cc
    dense/quantize.cu
    gemm/random_weight.cu
    sample/relax_drafts.cu
    dense/rms_norm.cu
    moe/route_experts.cu
    moe/route_softplus.cu
    sample/sample.cu
    attention/select_entries.cu
    slots/slots.cu
    gemm/tuning_file.cc
    attention/v4_rows.cu
    attention/window_attention.cu)

# Of these: the kernels for Hopper. They use instructions of sm_90a, and run on it alone.
set(foredraft_cuda_hopper_sources gemm/gemm_gate_up.cu gemm/gemm_hopper.cu attention/mla_decode_hopper.cu)
