#pragma once

// Reads a page of metrics in Prometheus' text format.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace foredraft {

class MetricsPage {
 public:
  using Labels = std::map<std::string, std::string>;

  // Skips lines that are no samples.
  explicit MetricsPage(absl::string_view text);

  // The sum over all samples of this name that have these labels, perhaps among others. Absent: there are
  // none.
  std::optional<double> Sum(absl::string_view name, const Labels& labels = {}) const;
  // All values of a label that samples of this name have, sorted by length, then alphabetically: 2 before 10.
  std::vector<std::string> ValuesOf(absl::string_view name, const std::string& label) const;

 private:
  struct Sample {
    std::string name;
    Labels labels;
    double value = 0;
  };
  static std::optional<Sample> Read(absl::string_view line);

  std::vector<Sample> samples_;
};

}  // namespace foredraft
