#pragma once

// A spdlog sink that writes to a descriptor and never waits for its reader: a line that does not fit into a
// full pipe is dropped and counted. The next line that fits is preceded by one that says how many were.
// Thread-safe.

#include <spdlog/sinks/base_sink.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace foredraft {

class StderrSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // Writes to the file that `fd` is open on, through an open file description of its own where the system
  // gives one, so that other users of `fd` keep theirs.
  explicit StderrSink(int fd);
  ~StderrSink() override;

  // On a terminal: shows lines below everything that is logged, "loading  50%\nloading  40%", in place of
  // those of the last call. They are erased before a log line and drawn again after it. Empty: they stay
  // where they are, and the log goes on below them.
  void KeepBelow(std::string lines);
  // Writes a line unchanged, among those of the log.
  void WriteLine(std::string_view line);

  uint64_t dropped_lines() const { return dropped_lines_.load(); }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  void WriteLogged(std::string_view line);  // with its line break; the caller holds base_sink's mutex
  bool Write(std::string_view text);

  const int own_fd_;  // -1: fd_ is the caller's
  const int fd_;
  std::atomic<uint64_t> dropped_lines_ = 0;
  uint64_t unreported_ = 0;  // of these, guarded by base_sink's mutex
  std::string rest_;         // of a line that was written in part, guarded by base_sink's mutex
  std::string below_;        // what KeepBelow shows, guarded by base_sink's mutex
};

}  // namespace foredraft
