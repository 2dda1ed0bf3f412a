#include "server/output/stderr_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/grouped_digits.h"

namespace foredraft {
namespace {

// Pipes and terminals can be opened again through /proc; sockets cannot. Files are left out: their writes do
// not wait for a reader, and with an open file description of its own the sink would not share the file's
// offset with other writers.
int OpenAgain(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0 || S_ISREG(status.st_mode)) return -1;
  return open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC);
}

// The control sequence that erases these lines when the cursor is at the end of the last one: to the
// beginning of the first line, and everything from there on.
std::string Erase(const std::string& lines) {
  if (lines.empty()) return "";
  const auto breaks = std::count(lines.begin(), lines.end(), '\n');
  return absl::StrCat("\r", breaks > 0 ? absl::StrCat("\x1b[", breaks, "A") : "", "\x1b[J");
}

}  // namespace

StderrSink::StderrSink(int fd) : own_fd_(OpenAgain(fd)), fd_(own_fd_ >= 0 ? own_fd_ : fd) {}

StderrSink::~StderrSink() {
  if (own_fd_ >= 0) close(own_fd_);
}

void StderrSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t formatted;
  formatter_->format(message, formatted);
  WriteLogged(std::string_view(formatted.data(), formatted.size()));
}

void StderrSink::WriteLine(std::string_view line) {
  std::lock_guard<std::mutex> lock(mutex_);
  WriteLogged(absl::StrCat(std::string(line), "\n"));
}

void StderrSink::KeepBelow(std::string lines) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (lines == below_) return;
  Write(lines.empty() ? std::string("\n") : absl::StrCat(Erase(below_), lines));
  below_ = std::move(lines);
}

void StderrSink::WriteLogged(std::string_view line) {
  std::string text = std::exchange(rest_, {});
  if (unreported_ > 0) {
    absl::StrAppend(&text, "foredraft: ", Grouped(static_cast<int64_t>(unreported_)),
                    " log lines were dropped: nobody read this output\n");
  }
  if (!text.empty() && !Write(text)) {
    ++unreported_;
    ++dropped_lines_;
    return;
  }
  unreported_ = 0;
  if (Write(below_.empty() ? std::string(line) : absl::StrCat(Erase(below_), std::string(line), below_)))
    return;
  ++unreported_;
  ++dropped_lines_;
}

// False: nothing was written. The rest of a text that was written in part comes before the next line.
bool StderrSink::Write(std::string_view text) {
  size_t written = 0;
  while (written < text.size()) {
    pollfd ready{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (poll(&ready, 1, 0) <= 0) break;
    const ssize_t count = write(fd_, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    written += static_cast<size_t>(count);
  }
  if (written == 0) return false;
  rest_ = std::string(text.substr(written));
  return true;
}

}  // namespace foredraft
