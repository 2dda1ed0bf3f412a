#pragma once

// The kernels behind the op table, in the order of kernels/ops.h. Each is in the file of its op's name,
// except for the small dense ones (dense.cc), rope_query, kv_write and gather_kv (kv_cache_rows.cc),
// expert_partials and add_partials (combine_experts.cc), argmax (sample.cc) and the slot ops (slots.cc).

#include "kernels/cpu/device/cpu_stream.h"
#include "kernels/ops.h"

namespace foredraft::cpu {

void Embed(const CpuContext& context, const EmbedParams& p);
void RmsNorm(const CpuContext& context, const RmsNormParams& p);
void Gemm(const CpuContext& context, const GemmParams& p);
void HeadGemm(const CpuContext& context, const HeadGemmParams& p);
void Add(const CpuContext& context, const AddParams& p);
void SiluMul(const CpuContext& context, const SiluMulParams& p);
void CopyRows(const CpuContext& context, const CopyRowsParams& p);
void ToBf16Rows(const CpuContext& context, const ToBf16Params& p);

void RopeQuery(const CpuContext& context, const RopeQueryParams& p);
void KvWrite(const CpuContext& context, const KvWriteParams& p);
void MlaDecode(const CpuContext& context, const MlaDecodeParams& p);
void GatherKv(const CpuContext& context, const GatherKvParams& p);
void MlaPrefill(const CpuContext& context, const MlaPrefillParams& p);

void RouteExperts(const CpuContext& context, const RouteExpertsParams& p);
void GroupRows(const CpuContext& context, const GroupRowsParams& p);
void GroupedGemm(const CpuContext& context, const GroupedGemmParams& p);
void CombineExperts(const CpuContext& context, const CombineExpertsParams& p);
void ExpertPartials(const CpuContext& context, const ExpertPartialsParams& p);
void AddPartials(const CpuContext& context, const AddPartialsParams& p);

void Argmax(const CpuContext& context, const ArgmaxParams& p);
void Sample(const CpuContext& context, const SampleParams& p);
void RelaxDrafts(const CpuContext& context, const RelaxDraftsParams& p);

void DecodeRows(const CpuContext& context, const DecodeRowsParams& p);
void VerifyDrafts(const CpuContext& context, const VerifyDraftsParams& p);
void AcceptFirstToken(const CpuContext& context, const AcceptFirstTokenParams& p);
void EmittedRows(const CpuContext& context, const EmittedRowsParams& p);
void NextDraftRows(const CpuContext& context, const NextDraftRowsParams& p);
void StoreDrafts(const CpuContext& context, const StoreDraftsParams& p);
void RecentRows(const CpuContext& context, const RecentRowsParams& p);
void RecentLevelRows(const CpuContext& context, const RecentLevelRowsParams& p);
void AppendRecent(const CpuContext& context, const AppendRecentParams& p);

}  // namespace foredraft::cpu
