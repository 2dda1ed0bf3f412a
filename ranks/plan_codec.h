#pragma once

// Plans and results (scheduler/plan.h) as messages of proto/foredraft/worker/v1/worker.proto. Pure. Decoding
// gives back every field as it was encoded, so a rank behind a stream gets the same plan as a rank in this
// process (same-plan).

#include "foredraft/worker/v1/worker.pb.h"
#include "scheduler/plan.h"

namespace foredraft {

// The group's fields and `rank`'s own plan.
worker::v1::WorkerPlan EncodePlan(const IterationPlan& plan, int rank);
// `ranks` gets one entry per rank of the group, at least `rank`'s; all others are empty. Any message gives a
// plan, which plan_check.h judges.
IterationPlan DecodePlan(const worker::v1::WorkerPlan& message, int rank);

worker::v1::WorkerResult EncodeResult(const RankResult& result);
RankResult DecodeResult(const worker::v1::WorkerResult& message);

}  // namespace foredraft
