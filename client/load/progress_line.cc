#include "client/load/progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/grouped_digits.h"

namespace foredraft {
namespace {

constexpr double kPlainPeriod_s = 10;  // between plain lines
constexpr double kRateWindow_s = 1;    // a shorter window makes the rate jump with every decode step

size_t TerminalColumns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

ProgressLine::~ProgressLine() {
  if (!drawn_) return;
  fputs("\r\x1b[K", stderr);
  fflush(stderr);
}

std::string ProgressLine::Text(const LoadProgress& progress) {
  const double window_s = progress.elapsed_s - rate_from_s_;
  if (window_s >= kRateWindow_s || rate_from_s_ == 0) {
    rate_ = window_s > 0 ? static_cast<double>(progress.output_tokens - rate_from_tokens_) / window_s : 0;
  }
  if (window_s >= kRateWindow_s) {
    rate_from_s_ = progress.elapsed_s;
    rate_from_tokens_ = progress.output_tokens;
  }
  std::string text = label_.empty() ? "" : label_ + "   ";
  absl::StrAppend(&text, Grouped(progress.done), total_ ? absl::StrCat(" / ", Grouped(*total_)) : "",
                  " requests   ", Grouped(progress.running), " running   ", Grouped(rate_, 0), " tok/s   ",
                  Grouped(progress.elapsed_s, 1), " s");
  if (progress.failed > 0) absl::StrAppend(&text, "   ", Grouped(progress.failed), " failed");
  return text;
}

void ProgressLine::Show(const LoadProgress& progress) {
  if (terminal_) {
    const std::string text =
        Text(progress).substr(0, TerminalColumns() - 1);  // a wrapped line could not be redrawn
    fprintf(stderr, "\r%s\x1b[K", text.c_str());
    fflush(stderr);
    drawn_ = true;
  } else if (progress.elapsed_s >= next_plain_s_) {
    next_plain_s_ = progress.elapsed_s + kPlainPeriod_s;
    fprintf(stderr, "%s\n", Text(progress).c_str());
  }
}

}  // namespace foredraft
