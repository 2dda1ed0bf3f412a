#ifndef FOREDRAFT_ENGINE_REMOTE_PLAN_CODEC_H_
#define FOREDRAFT_ENGINE_REMOTE_PLAN_CODEC_H_

// Plans and results as messages of proto/foredraft/v1/worker.proto. Pure. What is decoded equals what was
// encoded, field by field: a rank behind a stream gets the same plan as one in this process.

#include "foredraft/v1/worker.pb.h"
#include "scheduler/plan.h"

namespace foredraft {

// The fields of the group, and `rank`'s own plan.
v1::WorkerPlan EncodePlan(const IterationPlan& plan, int rank);
// `ranks` has as many entries as the group; all but the one of `rank` are empty.
IterationPlan DecodePlan(const v1::WorkerPlan& message, int rank);

v1::WorkerResult EncodeResult(const RankResult& result);
RankResult DecodeResult(const v1::WorkerResult& message);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_REMOTE_PLAN_CODEC_H_
