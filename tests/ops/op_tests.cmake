# Relative to tests/ops. Tests of the ops of every backend; test_backend_*.cc chooses the backend of a binary.
set(op_tests
    acceptance_test.cc
    dense_test.cc
    drafter_invariance_test.cc
    expert_exchange_test.cc
    experts_test.cc
    gemm_test.cc
    gate_test.cc
    head_gemm_test.cc
    kv_cache_rows_test.cc
    masked_rows_test.cc
    mla_decode_test.cc
    mla_prefill_test.cc
    route_experts_test.cc
    sample_rows_test.cc
    sample_test.cc
    slots_test.cc)
# Likewise, of DeepSeek-V4's ops.
set(v4_op_tests
    compress_test.cc
    draft_block_test.cc
    hyper_connections_test.cc
    select_entries_test.cc
    v4_experts_test.cc
    rotated_rows_test.cc
    window_attention_test.cc)
