#include "server/api/prompt_size.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_reason.h"

namespace foredraft {
namespace {

constexpr char kTokensPayload[] = "foredraft/prompt_tokens";
constexpr char kMostPayload[] = "foredraft/most_prompt_tokens";

int64_t NumberIn(const absl::Status& status, const char* payload) {
  int64_t number = 0;
  const auto found = status.GetPayload(payload);
  return found.has_value() && absl::SimpleAtoi(std::string(*found), &number) ? number : 0;
}

}  // namespace

absl::Status WithPromptSize(absl::Status status, const PromptSize& size) {
  status.SetPayload(kTokensPayload, absl::Cord(absl::StrCat(size.tokens)));
  status.SetPayload(kMostPayload, absl::Cord(absl::StrCat(size.most)));
  return WithReason(std::move(status), kReasonPromptTooLong);
}

std::optional<PromptSize> PromptSizeOf(const absl::Status& status) {
  if (ReasonOf(status) != kReasonPromptTooLong) return std::nullopt;
  return PromptSize{.tokens = NumberIn(status, kTokensPayload), .most = NumberIn(status, kMostPayload)};
}

}  // namespace foredraft
