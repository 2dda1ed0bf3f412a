#include "tests/e2e/on_terminal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace foredraft {

OnTerminal::OnTerminal(std::vector<std::string> arguments, const std::vector<std::string>& environment) {
  arguments.insert(arguments.begin(), FOREDRAFT_BINARY);
  winsize size{.ws_row = 30, .ws_col = 90};
  pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
  if (pid_ == 0) {
    setenv("TERM", "xterm-256color", 1);
    unsetenv("NO_COLOR");
    for (const std::string& variable : environment) putenv(strdup(variable.c_str()));
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  // Without a terminal there is nothing to wait for: the exception ends the test.
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "forkpty: no terminal");
  tcgetattr(terminal_, &first_modes_);
}

OnTerminal::~OnTerminal() {
  if (pid_ > 0) kill(pid_, SIGKILL);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
  close(terminal_);
}

std::string OnTerminal::WaitFor(const std::string& text) {
  for (int i = 0; i < 3000 && shown_.find(text) == std::string::npos && Read(10); ++i) {
  }
  EXPECT_THAT(shown_, testing::HasSubstr(text));
  return shown_;
}

void OnTerminal::Type(const std::string& keys) {
  EXPECT_EQ(write(terminal_, keys.data(), keys.size()), std::ssize(keys));
}

void OnTerminal::Resize(unsigned short columns) {
  winsize size{.ws_row = 30, .ws_col = columns};
  ioctl(terminal_, TIOCSWINSZ, &size);
}

int OnTerminal::Wait() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (Read(10)) {
    if (std::chrono::steady_clock::now() > deadline) kill(pid_, SIGKILL);  // which closes the terminal
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void OnTerminal::Signal(int signal) { kill(pid_, signal); }

bool OnTerminal::HasFirstModes() const {
  termios now{};
  tcgetattr(terminal_, &now);
  return now.c_lflag == first_modes_.c_lflag && now.c_iflag == first_modes_.c_iflag;
}

bool OnTerminal::Read(int timeout_ms) {
  pollfd file{.fd = terminal_, .events = POLLIN};
  if (poll(&file, 1, timeout_ms) == 0) return true;
  char part[4096];
  const ssize_t size = read(terminal_, part, sizeof(part));
  if (size <= 0) return false;
  shown_.append(part, static_cast<size_t>(size));
  return true;
}

}  // namespace foredraft
