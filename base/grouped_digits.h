#pragma once

// Numbers for people to read, with their digits in groups of three.

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

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

// (1037.4, 1) -> "1,037.4"
inline std::string Grouped(double number, int decimals) {
  const std::string digits = absl::StrFormat("%.*f", decimals, std::fabs(number));
  const std::string whole = digits.substr(0, digits.find('.'));
  return absl::StrCat(number < 0 ? "-" : "", Grouped(std::stoll(whole)), digits.substr(whole.size()));
}

}  // namespace foredraft
