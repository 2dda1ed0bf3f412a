#pragma once

// Runs a program under test. Its output goes to files in the test's temporary directory.

#include <sys/types.h>

#include <string>
#include <vector>

namespace foredraft {

class ChildProcess {
 public:
  // arguments[0] is the program.
  explicit ChildProcess(const std::vector<std::string>& arguments);
  ~ChildProcess();  // SIGKILL if it still runs

  pid_t pid() const { return pid_; }
  std::string Stdout() const;
  std::string Stderr() const;
  void Signal(int signal) const;
  // Waits until stderr (or stdout) contains `text`. False if the process ends or 60 s pass before that.
  bool WaitForStderr(const std::string& text);
  bool WaitForStdout(const std::string& text);
  // The exit code, -signal if one killed it, -1000 after 120 s.
  int Wait();

 private:
  bool WaitFor(const std::string& path, const std::string& text);
  bool HasEnded();  // reaps the process

  std::string stdout_path_;
  std::string stderr_path_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int exit_code_ = 0;
};

struct RunResult {
  int exit_code;
  std::string out;
  std::string err;
};
// Waits until the program ends.
RunResult RunProgram(const std::vector<std::string>& arguments);

}  // namespace foredraft
