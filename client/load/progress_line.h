#pragma once

// Shows the progress of a run on stderr: on a terminal one line that is redrawn, otherwise a plain line every
// 10 s. Owner: the command. One thread.

#include <cstdint>
#include <optional>
#include <string>

#include "client/load/load_run.h"

namespace foredraft {

class ProgressLine {
 public:
  // `label` begins the line ("warm-up"); without `total` the run ends by time.
  ProgressLine(bool terminal, std::string label, std::optional<int64_t> total)
      : terminal_(terminal), label_(std::move(label)), total_(total) {}
  ~ProgressLine();  // erases the line

  void Show(const LoadProgress& progress);

  // "  120 / 200 requests   16 running   1,037 tok/s   12.3 s"; the rate is over the last second.
  std::string Text(const LoadProgress& progress);

 private:
  const bool terminal_;
  const std::string label_;
  const std::optional<int64_t> total_;
  double next_plain_s_ = 1;  // elapsed time from which the next plain line is due
  double rate_from_s_ = 0;
  int64_t rate_from_tokens_ = 0;
  double rate_ = 0;  // tokens/s
  bool drawn_ = false;
};

}  // namespace foredraft
