#pragma once

// The ops of the CUDA backend, in the order of kernels/ops.h: each checks its shapes, gets scratch memory
// from the stream and launches its kernels. `stream` is a CudaStream.

#include "kernels/ops.h"

namespace foredraft::cuda {

void Embed(Stream& stream, const EmbedParams& p);
void RmsNorm(Stream& stream, const RmsNormParams& p);
void Gemm(Stream& stream, const GemmParams& p);
void HeadGemm(Stream& stream, const HeadGemmParams& p);
void Add(Stream& stream, const AddParams& p);
void SiluMul(Stream& stream, const SiluMulParams& p);
void CopyRows(Stream& stream, const CopyRowsParams& p);
void ToBf16Rows(Stream& stream, const ToBf16Params& p);

void RopeQuery(Stream& stream, const RopeQueryParams& p);
void KvWrite(Stream& stream, const KvWriteParams& p);
void MlaDecode(Stream& stream, const MlaDecodeParams& p);
void GatherKv(Stream& stream, const GatherKvParams& p);
void MlaPrefill(Stream& stream, const MlaPrefillParams& p);

void RouteExperts(Stream& stream, const RouteExpertsParams& p);
void GroupRows(Stream& stream, const GroupRowsParams& p);
void GroupedGemm(Stream& stream, const GroupedGemmParams& p);
void CombineExperts(Stream& stream, const CombineExpertsParams& p);
void ExpertPartials(Stream& stream, const ExpertPartialsParams& p);
void AddPartials(Stream& stream, const AddPartialsParams& p);

void Argmax(Stream& stream, const ArgmaxParams& p);
void Sample(Stream& stream, const SampleParams& p);
void RelaxDrafts(Stream& stream, const RelaxDraftsParams& p);

void DecodeRows(Stream& stream, const DecodeRowsParams& p);
void VerifyDrafts(Stream& stream, const VerifyDraftsParams& p);
void AcceptFirstToken(Stream& stream, const AcceptFirstTokenParams& p);
void EmittedRows(Stream& stream, const EmittedRowsParams& p);
void NextDraftRows(Stream& stream, const NextDraftRowsParams& p);
void StoreDrafts(Stream& stream, const StoreDraftsParams& p);
void RecentRows(Stream& stream, const RecentRowsParams& p);
void RecentLevelRows(Stream& stream, const RecentLevelRowsParams& p);
void AppendRecent(Stream& stream, const AppendRecentParams& p);

}  // namespace foredraft::cuda
