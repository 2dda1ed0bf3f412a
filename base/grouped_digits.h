#ifndef FOREDRAFT_BASE_GROUPED_DIGITS_H_
#define FOREDRAFT_BASE_GROUPED_DIGITS_H_

// Numbers as people read them.

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace foredraft {

// 65536 -> "65,536"
inline std::string Grouped(int64_t number) {
  const std::string digits = absl::StrCat(number < 0 ? -number : number);
  std::string text = number < 0 ? "-" : "";
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

}  // namespace foredraft

#endif  // FOREDRAFT_BASE_GROUPED_DIGITS_H_
