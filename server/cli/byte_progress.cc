#include "server/cli/byte_progress.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "server/cli/progress_bar.h"

namespace foredraft {

ByteProgress::~ByteProgress() {
  if (line_is_open_) fprintf(stderr, "\n");
}

void ByteProgress::Show(int64_t done_bytes, int64_t total_bytes) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (terminal_) {
    fprintf(stderr, "\r%s  %s   %.1f s", doing_.c_str(), ProgressBar(done_bytes, total_bytes).c_str(),
            seconds);
    line_is_open_ = done_bytes != total_bytes;
    if (!line_is_open_) fprintf(stderr, "\n");
    fflush(stderr);
    return;
  }
  const int64_t tenths = done_bytes * 10 / std::max<int64_t>(total_bytes, 1);
  if (tenths == logged_tenths_) return;
  logged_tenths_ = tenths;
  LogLine(LogLevel::kInfo, absl::StrFormat("%s  %d%%  %s / %s MB   %.1f s", doing_, tenths * 10,
                                           Megabytes(done_bytes), Megabytes(total_bytes), seconds));
}

}  // namespace foredraft
