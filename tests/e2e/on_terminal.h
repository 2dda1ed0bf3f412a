#pragma once

// A subcommand of the binary on a terminal of its own, 30 lines of 90 columns.

#include <sys/types.h>
#include <termios.h>

#include <string>
#include <vector>

namespace foredraft {

class OnTerminal {
 public:
  // `environment`: "NAME=value".
  explicit OnTerminal(std::vector<std::string> arguments, const std::vector<std::string>& environment = {});
  ~OnTerminal();  // SIGKILL if it still runs

  // Everything that was shown, until it contains `text` or 30 s have passed.
  std::string WaitFor(const std::string& text);
  void Type(const std::string& keys);
  void Resize(unsigned short columns);
  // The exit code, of a program that runs for over 30 s -SIGKILL. Everything shown before is in shown().
  int Wait();
  const std::string& shown() const { return shown_; }
  void Forget() { shown_.clear(); }
  void Signal(int signal);
  bool HasFirstModes() const;

 private:
  bool Read(int timeout_ms);  // false: the program has closed the terminal

  int terminal_ = -1;
  pid_t pid_ = -1;
  termios first_modes_{};
  std::string shown_;
};

}  // namespace foredraft
