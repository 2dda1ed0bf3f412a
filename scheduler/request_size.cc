#include "scheduler/request_size.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/grouped_digits.h"

namespace foredraft {
namespace {

std::string LimitText(const RequestSizeLimits& limits) {
  return limits.pool_len < limits.max_seq_len ? absl::StrCat("the KV pool holds ", Grouped(limits.pool_len))
                                              : absl::StrCat("max_seq_len is ", Grouped(limits.max_seq_len));
}

}  // namespace

absl::Status RequestSizeLimits::CheckPrompt(const char* prompt_field, int64_t prompt_len) const {
  if (prompt_len == 0) {
    return absl::InvalidArgumentError(absl::StrCat(prompt_field, ": empty, allowed at least 1 token"));
  }
  if (prompt_len < max_len()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(prompt_field, ": prompt of ", Grouped(prompt_len),
                                                 " tokens, ", LimitText(*this),
                                                 " with at least 1 to generate"));
}

absl::Status RequestSizeLimits::Check(const char* prompt_field, int64_t prompt_len,
                                      int64_t max_tokens) const {
  if (max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens: ", Grouped(max_tokens), ", allowed at least 1"));
  }
  if (absl::Status status = CheckPrompt(prompt_field, prompt_len); !status.ok()) return status;
  const int64_t total = prompt_len + max_tokens;
  if (total <= max_len()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("max_tokens: prompt ", Grouped(prompt_len), " + max_tokens ",
                                                 Grouped(max_tokens), " is ", Grouped(total), ", ",
                                                 LimitText(*this)));
}

}  // namespace foredraft
