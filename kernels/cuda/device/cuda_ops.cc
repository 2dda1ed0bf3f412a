#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/device/kernels_v4.h"

namespace foredraft {

const Ops& CudaOps() {
  static constexpr Ops ops = {
      .embed = cuda::Embed,
      .rms_norm = cuda::RmsNorm,
      .gemm = cuda::Gemm,
      .head_gemm = cuda::HeadGemm,
      .add = cuda::Add,
      .silu_mul = cuda::SiluMul,
      .copy_rows = cuda::CopyRows,
      .to_bf16 = cuda::ToBf16Rows,
      .rope_query = cuda::RopeQuery,
      .kv_write = cuda::KvWrite,
      .mla_decode = cuda::MlaDecode,
      .gather_kv = cuda::GatherKv,
      .mla_prefill = cuda::MlaPrefill,
      .route_experts = cuda::RouteExperts,
      .group_rows = cuda::GroupRows,
      .grouped_gemm = cuda::GroupedGemm,
      .combine_experts = cuda::CombineExperts,
      .expert_partials = cuda::ExpertPartials,
      .add_partials = cuda::AddPartials,
      .argmax = cuda::Argmax,
      .sample = cuda::Sample,
      .relax_drafts = cuda::RelaxDrafts,
      .decode_rows = cuda::DecodeRows,
      .verify_drafts = cuda::VerifyDrafts,
      .accept_first_token = cuda::AcceptFirstToken,
      .emitted_rows = cuda::EmittedRows,
      .next_draft_rows = cuda::NextDraftRows,
      .store_drafts = cuda::StoreDrafts,
      .recent_rows = cuda::RecentRows,
      .recent_level_rows = cuda::RecentLevelRows,
      .append_recent = cuda::AppendRecent,
      .v4 = {.hyper_pre = cuda::HyperPre,
             .hyper_post = cuda::HyperPost,
             .hyper_head = cuda::HyperHead,
             .broadcast_streams = cuda::BroadcastStreams,
             .rotate_heads = cuda::RotateHeads,
             .write_keys = cuda::WriteKeys,
             .compress = cuda::Compress,
             .select_entries = cuda::SelectEntries,
             .window_attention = cuda::WindowAttention,
             .route_softplus = cuda::RouteSoftplus,
             .clamped_silu_mul = cuda::ClampedSiluMul},
  };
  return ops;
}

}  // namespace foredraft
