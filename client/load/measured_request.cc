#include "client/load/measured_request.h"

#include "absl/strings/str_cat.h"

namespace foredraft {

void AddChunk(MeasuredRequest& request, double now_s, v1::GenerateChunk& chunk) {
  if (chunk.has_usage()) request.usage.Swap(chunk.mutable_usage());
  if (chunk.has_speculation()) request.speculation.Swap(chunk.mutable_speculation());
  if (chunk.token_ids().empty()) return;
  for (const int32_t id : chunk.token_ids()) {
    request.token_hash = Fnv1a({reinterpret_cast<const char*>(&id), sizeof(id)}, request.token_hash);
  }
  if (request.output_tokens == 0) {
    request.first_token_s = now_s;
  } else {
    request.gaps.push_back({.gap_ms = static_cast<float>((now_s - request.last_token_s) * 1e3),
                            .token_count = chunk.token_ids_size()});
  }
  request.last_token_s = now_s;
  request.output_tokens += chunk.token_ids_size();
}

void EndRequest(MeasuredRequest& request, const absl::Status& status, bool interrupted) {
  request.status = status;
  if (status.ok() && request.output_tokens != request.usage.completion_tokens()) {
    request.status = absl::DataLossError(absl::StrCat(
        "received ", request.output_tokens, " tokens, usage says ", request.usage.completion_tokens()));
  }
  request.outcome = request.status.ok()                        ? RequestOutcome::kCompleted
                    : interrupted && absl::IsCancelled(status) ? RequestOutcome::kInterrupted
                                                               : RequestOutcome::kFailed;
}

}  // namespace foredraft
