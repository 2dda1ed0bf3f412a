#pragma once

// Drafts that a server's engine makes with an Eagle3 head for requests that are sampled or have penalties,
// compared with float64: from the residual stream behind the layers that the head reads, which the device
// gives for the committed tokens alone, to the chosen token. Another token than the reference's is right
// where rounding alone may choose it (choice_reference.h); such a draft counts as a near tie. One thread.

#include "absl/status/statusor.h"
#include "tools/validate_mtp/boundary.h"
#include "tools/validate_mtp/eagle3_reference.h"
#include "tools/validate_mtp/mtp_device.h"
#include "tools/validate_mtp/serving_engine.h"

namespace foredraft {

// Drafts that were compared with the reference's tokens, `near_ties` of them right only because rounding may
// have chosen them. Where most are, hardly anything was compared.
Boundary WithNearTies(Boundary drafts, int64_t near_ties);

// The boundary "serving sampled drafts". `device` has the model and its head, and room for one sequence as
// long as the engine's longest.
absl::StatusOr<Boundary> CheckSampledDrafts(ServingEngine& engine, MtpDevice& device,
                                            reference::Eagle3References references, const Prompts& prompts,
                                            const ServingCheckOptions& options);

}  // namespace foredraft
