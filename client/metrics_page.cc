#include "client/metrics_page.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace foredraft {
namespace {

// Takes labels, each `name="value",`, from the front of `text`, up to and with the closing brace. False:
// malformed.
bool TakeLabels(absl::string_view& text, MetricsPage::Labels& labels) {
  for (;;) {
    if (text.empty()) return false;
    if (text[0] == '}') {
      text.remove_prefix(1);
      return true;
    }
    const size_t equals = text.find("=\"");
    if (equals == absl::string_view::npos) return false;
    std::string& value = labels[std::string(text.substr(0, equals))];
    text.remove_prefix(equals + 2);
    while (!text.empty() && text[0] != '"') {
      if (text[0] == '\\' && text.size() > 1) {  // \\ \" \n
        text.remove_prefix(1);
        value += text[0] == 'n' ? '\n' : text[0];
      } else {
        value += text[0];
      }
      text.remove_prefix(1);
    }
    if (text.empty()) return false;
    text.remove_prefix(1);
    if (!text.empty() && text[0] == ',') text.remove_prefix(1);
  }
}

}  // namespace

MetricsPage::MetricsPage(absl::string_view text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (std::optional<Sample> sample = Read(line)) samples_.push_back(*std::move(sample));
  }
}

std::optional<MetricsPage::Sample> MetricsPage::Read(absl::string_view line) {
  if (line.empty() || line[0] == '#') return std::nullopt;
  const size_t name_end = line.find_first_of("{ ");
  if (name_end == absl::string_view::npos || name_end == 0) return std::nullopt;
  Sample sample{.name = std::string(line.substr(0, name_end))};
  line.remove_prefix(name_end);
  if (line[0] == '{') {
    line.remove_prefix(1);
    if (!TakeLabels(line, sample.labels)) return std::nullopt;
  }
  line = absl::StripLeadingAsciiWhitespace(line);
  const absl::string_view number = line.substr(0, line.find(' '));  // a timestamp may follow
  if (!absl::SimpleAtod(number, &sample.value)) return std::nullopt;
  return sample;
}

std::optional<double> MetricsPage::Sum(absl::string_view name, const Labels& labels) const {
  std::optional<double> sum;
  for (const Sample& sample : samples_) {
    if (sample.name != name) continue;
    const bool has_all = std::all_of(labels.begin(), labels.end(), [&sample](const auto& label) {
      const auto found = sample.labels.find(label.first);
      return found != sample.labels.end() && found->second == label.second;
    });
    if (has_all) sum = sum.value_or(0) + sample.value;
  }
  return sum;
}

std::vector<std::string> MetricsPage::ValuesOf(absl::string_view name, const std::string& label) const {
  std::vector<std::string> values;
  for (const Sample& sample : samples_) {
    if (sample.name != name) continue;
    const auto found = sample.labels.find(label);
    if (found != sample.labels.end()) values.push_back(found->second);
  }
  std::sort(values.begin(), values.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace foredraft
