// The table of ops while some have no kernel yet: those are null.

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/kernels.h"

namespace foredraft {
namespace cuda {

__attribute__((weak)) void Embed(Stream& stream, const EmbedParams& p);
__attribute__((weak)) void RmsNorm(Stream& stream, const RmsNormParams& p);
__attribute__((weak)) void Gemm(Stream& stream, const GemmParams& p);
__attribute__((weak)) void HeadGemm(Stream& stream, const HeadGemmParams& p);
__attribute__((weak)) void Add(Stream& stream, const AddParams& p);
__attribute__((weak)) void SiluMul(Stream& stream, const SiluMulParams& p);
__attribute__((weak)) void CopyRows(Stream& stream, const CopyRowsParams& p);
__attribute__((weak)) void ToBf16Rows(Stream& stream, const ToBf16Params& p);
__attribute__((weak)) void RopeQuery(Stream& stream, const RopeQueryParams& p);
__attribute__((weak)) void KvWrite(Stream& stream, const KvWriteParams& p);
__attribute__((weak)) void MlaDecode(Stream& stream, const MlaDecodeParams& p);
__attribute__((weak)) void GatherKv(Stream& stream, const GatherKvParams& p);
__attribute__((weak)) void MlaPrefill(Stream& stream, const MlaPrefillParams& p);
__attribute__((weak)) void RouteExperts(Stream& stream, const RouteExpertsParams& p);
__attribute__((weak)) void GroupRows(Stream& stream, const GroupRowsParams& p);
__attribute__((weak)) void GroupedGemm(Stream& stream, const GroupedGemmParams& p);
__attribute__((weak)) void CombineExperts(Stream& stream, const CombineExpertsParams& p);
__attribute__((weak)) void ExpertPartials(Stream& stream, const ExpertPartialsParams& p);
__attribute__((weak)) void AddPartials(Stream& stream, const AddPartialsParams& p);
__attribute__((weak)) void Argmax(Stream& stream, const ArgmaxParams& p);
__attribute__((weak)) void Sample(Stream& stream, const SampleParams& p);
__attribute__((weak)) void RelaxDrafts(Stream& stream, const RelaxDraftsParams& p);
__attribute__((weak)) void DecodeRows(Stream& stream, const DecodeRowsParams& p);
__attribute__((weak)) void VerifyDrafts(Stream& stream, const VerifyDraftsParams& p);
__attribute__((weak)) void AcceptFirstToken(Stream& stream, const AcceptFirstTokenParams& p);
__attribute__((weak)) void EagleRows(Stream& stream, const EagleRowsParams& p);
__attribute__((weak)) void NextDraftRows(Stream& stream, const NextDraftRowsParams& p);
__attribute__((weak)) void StoreDrafts(Stream& stream, const StoreDraftsParams& p);
__attribute__((weak)) void VanillaRows(Stream& stream, const VanillaRowsParams& p);
__attribute__((weak)) void VanillaLevelRows(Stream& stream, const VanillaLevelRowsParams& p);
__attribute__((weak)) void AppendRecent(Stream& stream, const AppendRecentParams& p);

}  // namespace cuda

const Ops& CudaOps() {
  static const Ops ops = {
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
      .eagle_rows = cuda::EagleRows,
      .next_draft_rows = cuda::NextDraftRows,
      .store_drafts = cuda::StoreDrafts,
      .vanilla_rows = cuda::VanillaRows,
      .vanilla_level_rows = cuda::VanillaLevelRows,
      .append_recent = cuda::AppendRecent,
  };
  return ops;
}

}  // namespace foredraft
