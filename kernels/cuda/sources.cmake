# Relative to kernels/cuda.
set(foredraft_cuda_sources
    attention/compress.cu
    attention/kv_cache_rows.cu
    attention/mla_decode.cu
    attention/mla_decode_hopper.cu
    attention/mla_decode_items.cu
    attention/mla_prefill.cu
    attention/rotated_rows.cu
    attention/select_entries.cu
    attention/window_attention.cu
    dense/dense.cu
    dense/hyper_connections.cu
    dense/quantize.cu
    device/capability.cc
    device/cuda_device.cc
    device/cuda_memory.cc
    device/cuda_probe.cu
    device/cuda_stream.cc
    gemm/cublaslt_gemm.cc
    gemm/cublaslt_tune.cc
    gemm/gemm.cu
    gemm/gemm_4bit.cu
    gemm/gemm_gate_up.cu
    gemm/gemm_gather.cu
    gemm/gemm_hopper.cu
    gemm/gemm_tile.cu
    gemm/grouped_gemm.cu
    gemm/head_gemm.cu
    gemm/packed_weight.cc
    gemm/random_weight.cu
    gemm/tuning_file.cc
    moe/combine_experts.cu
    moe/group_rows.cu
    moe/route_experts.cu
    moe/route_softplus.cu
    sample/argmax.cu
    sample/relax_drafts.cu
    sample/sample.cu
    slots/slots.cu)

# Of these: the kernels for Hopper. They use instructions of sm_90a, and run on it alone.
set(foredraft_cuda_hopper_sources gemm/gemm_gate_up.cu gemm/gemm_hopper.cu attention/mla_decode_hopper.cu)
