#include "tests/e2e/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <sstream>

namespace foredraft {
namespace {

using std::chrono::steady_clock;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

// The pause between two polls of a child.
void Tick() { poll(nullptr, 0, 10); }

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments) {
  static std::atomic<int> number = 0;
  const std::string stem =
      testing::TempDir() + "/child_" + std::to_string(getpid()) + "_" + std::to_string(number++);
  stdout_path_ = stem + ".out";
  stderr_path_ = stem + ".err";
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int out = open(stdout_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const int err = open(stderr_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(out);
  close(err);
}

ChildProcess::~ChildProcess() {
  if (!HasEnded()) {
    kill(pid_, SIGKILL);
    Wait();
  }
}

std::string ChildProcess::Stdout() const { return ReadAll(stdout_path_); }
std::string ChildProcess::Stderr() const { return ReadAll(stderr_path_); }
void ChildProcess::Signal(int signal) const { kill(pid_, signal); }

bool ChildProcess::HasEnded() {
  int status = 0;
  if (ended_ || waitpid(pid_, &status, WNOHANG) != pid_) return ended_;
  ended_ = true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return true;
}

bool ChildProcess::WaitFor(const std::string& path, const std::string& text) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(60);
  while (steady_clock::now() < deadline) {
    const bool ended = HasEnded();  // checked before reading, so that its last output is read
    if (ReadAll(path).find(text) != std::string::npos) return true;
    if (ended) return false;
    Tick();
  }
  return false;
}

bool ChildProcess::WaitForStderr(const std::string& text) { return WaitFor(stderr_path_, text); }
bool ChildProcess::WaitForStdout(const std::string& text) { return WaitFor(stdout_path_, text); }

int ChildProcess::Wait() {
  const auto deadline = steady_clock::now() + std::chrono::seconds(120);
  while (!HasEnded()) {
    if (steady_clock::now() > deadline) return -1000;
    Tick();
  }
  return exit_code_;
}

RunResult RunProgram(const std::vector<std::string>& arguments) {
  ChildProcess process(arguments);
  const int exit_code = process.Wait();
  return {exit_code, process.Stdout(), process.Stderr()};
}

}  // namespace foredraft
