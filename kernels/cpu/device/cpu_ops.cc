// The table of ops of the CPU backend: one line per op.

#include "kernels/cpu/device/cpu_device.h"
#include "kernels/cpu/device/kernels.h"
#include "kernels/cpu/device/kernels_v4.h"

namespace foredraft {

const Ops& CpuOps() {
  static constexpr Ops kOps = {
      .embed = Submit<EmbedParams, cpu::Embed>,
      .rms_norm = Submit<RmsNormParams, cpu::RmsNorm>,
      .gemm = Submit<GemmParams, cpu::Gemm>,
      .head_gemm = Submit<HeadGemmParams, cpu::HeadGemm>,
      .add = Submit<AddParams, cpu::Add>,
      .silu_mul = Submit<SiluMulParams, cpu::SiluMul>,
      .copy_rows = Submit<CopyRowsParams, cpu::CopyRows>,
      .to_bf16 = Submit<ToBf16Params, cpu::ToBf16Rows>,
      .rope_query = Submit<RopeQueryParams, cpu::RopeQuery>,
      .kv_write = Submit<KvWriteParams, cpu::KvWrite>,
      .mla_decode = Submit<MlaDecodeParams, cpu::MlaDecode>,
      .gather_kv = Submit<GatherKvParams, cpu::GatherKv>,
      .mla_prefill = Submit<MlaPrefillParams, cpu::MlaPrefill>,
      .route_experts = Submit<RouteExpertsParams, cpu::RouteExperts>,
      .group_rows = Submit<GroupRowsParams, cpu::GroupRows>,
      .grouped_gemm = Submit<GroupedGemmParams, cpu::GroupedGemm>,
      .combine_experts = Submit<CombineExpertsParams, cpu::CombineExperts>,
      .expert_partials = Submit<ExpertPartialsParams, cpu::ExpertPartials>,
      .add_partials = Submit<AddPartialsParams, cpu::AddPartials>,
      .argmax = Submit<ArgmaxParams, cpu::Argmax>,
      .sample = Submit<SampleParams, cpu::Sample>,
      .relax_drafts = Submit<RelaxDraftsParams, cpu::RelaxDrafts>,
      .decode_rows = Submit<DecodeRowsParams, cpu::DecodeRows>,
      .verify_drafts = Submit<VerifyDraftsParams, cpu::VerifyDrafts>,
      .accept_first_token = Submit<AcceptFirstTokenParams, cpu::AcceptFirstToken>,
      .emitted_rows = Submit<EmittedRowsParams, cpu::EmittedRows>,
      .next_draft_rows = Submit<NextDraftRowsParams, cpu::NextDraftRows>,
      .store_drafts = Submit<StoreDraftsParams, cpu::StoreDrafts>,
      .recent_rows = Submit<RecentRowsParams, cpu::RecentRows>,
      .recent_level_rows = Submit<RecentLevelRowsParams, cpu::RecentLevelRows>,
      .append_recent = Submit<AppendRecentParams, cpu::AppendRecent>,
      .v4 = {.hyper_pre = Submit<HyperPreParams, cpu::HyperPre>,
             .hyper_post = Submit<HyperPostParams, cpu::HyperPost>,
             .hyper_head = Submit<HyperHeadParams, cpu::HyperHead>,
             .broadcast_streams = Submit<BroadcastStreamsParams, cpu::BroadcastStreams>,
             .rotate_heads = Submit<RotateHeadsParams, cpu::RotateHeads>,
             .write_keys = Submit<WriteKeysParams, cpu::WriteKeys>,
             .compress = Submit<CompressParams, cpu::Compress>,
             .select_entries = Submit<SelectEntriesParams, cpu::SelectEntries>,
             .window_attention = Submit<WindowAttentionParams, cpu::WindowAttention>,
             .route_softplus = Submit<RouteSoftplusParams, cpu::RouteSoftplus>,
             .clamped_silu_mul = Submit<ClampedSiluMulParams, cpu::ClampedSiluMul>},
  };
  return kOps;
}

}  // namespace foredraft
