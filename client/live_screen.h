#pragma once

// The terminal as a screen that is redrawn in place, until q, Ctrl-C, SIGTERM or SIGHUP. In the end its
// previous content comes back. One object at a time.

#include <termios.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foredraft {

class LiveScreen {
 public:
  // Blocks the signals in this thread, and so in the threads that it starts later: call it before gRPC starts
  // any.
  static void BlockSignals();
  // FAILED_PRECONDITION: stdin or stdout is no terminal.
  static absl::StatusOr<LiveScreen> Open();
  LiveScreen(LiveScreen&& other) noexcept;
  LiveScreen& operator=(LiveScreen&&) = delete;
  ~LiveScreen();

  int width() const { return width_; }
  int height() const { return height_; }

  // Replaces the content. Each line ends in a line break and is no wider than the screen.
  void Draw(const std::string& lines);

  enum class Event { kTimeout, kResized, kQuit };
  // Waits for the next event, at most until `until`.
  Event Wait(std::chrono::steady_clock::time_point until);

 private:
  LiveScreen(const termios& before, int signals);
  void Measure();

  termios before_;  // the terminal's modes
  int signals_;     // a signalfd; -1 = moved from
  int width_ = 80;
  int height_ = 24;
};

}  // namespace foredraft
