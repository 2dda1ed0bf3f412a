#pragma once

// The progress of a command that writes a checkpoint, on stderr: a bar on a terminal, otherwise a log line
// every 10%. Owner: the command. One thread.

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace foredraft {

class ByteProgress {
 public:
  // `doing` begins the line: "quantizing".
  explicit ByteProgress(std::string doing) : doing_(std::move(doing)) {}
  ~ByteProgress();  // ends the line of work that was not finished

  void Show(int64_t done_bytes, int64_t total_bytes);

 private:
  const std::string doing_;
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t logged_tenths_ = 0;
  bool line_is_open_ = false;
};

}  // namespace foredraft
