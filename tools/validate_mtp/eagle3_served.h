#pragma once

// Compares with float64 the drafts that a server's engine makes with an Eagle3 head for requests with
// sampling or penalties. The reference begins at the residual streams that the head reads, which the device
// computes from the committed tokens alone, and ends with the chosen token. Another token than the
// reference's is right where rounding alone may choose it (choice_reference.h); such a draft counts as a near
// tie. One thread.

#include "absl/status/statusor.h"
#include "tools/validate_mtp/boundary.h"
#include "tools/validate_mtp/eagle3_reference.h"
#include "tools/validate_mtp/mtp_device.h"
#include "tools/validate_mtp/serving_engine.h"

namespace foredraft {

// `drafts` with its near ties: `near_ties` drafts were right only because rounding may have chosen them. If
// most were, hardly anything was compared.
Boundary WithNearTies(Boundary drafts, int64_t near_ties);

// The boundary "serving sampled drafts". `device` has the model and its head, and room for one sequence as
// long as the engine's longest.
absl::StatusOr<Boundary> CheckSampledDrafts(ServingEngine& engine, MtpDevice& device,
                                            reference::Eagle3References references, const Prompts& prompts,
                                            const ServingCheckOptions& options);

}  // namespace foredraft
