#include "client/live_screen.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace foredraft {
namespace {

constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";  // the alternate screen, without a cursor
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kCtrlC = 3, kCtrlD = 4;

// Errors are ignored: they mean that the terminal was closed.
void Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

sigset_t Signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) sigaddset(&signals, signal);
  return signals;
}

}  // namespace

void LiveScreen::BlockSignals() {
  const sigset_t signals = Signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

absl::StatusOr<LiveScreen> LiveScreen::Open() {
  termios before;
  if (isatty(STDOUT_FILENO) != 1 || tcgetattr(STDIN_FILENO, &before) != 0) {
    return absl::FailedPreconditionError("stdin or stdout is no terminal: --once prints one frame");
  }
  const sigset_t signals = Signals();
  return LiveScreen(before, signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

LiveScreen::LiveScreen(const termios& before, int signals) : before_(before), signals_(signals) {
  termios raw = before;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);  // keys come one by one, Ctrl-C too
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  Write(kEnter);
  Measure();
}

LiveScreen::LiveScreen(LiveScreen&& other) noexcept
    : before_(other.before_),
      signals_(std::exchange(other.signals_, -1)),
      width_(other.width_),
      height_(other.height_) {}

LiveScreen::~LiveScreen() {
  if (signals_ < 0) return;
  Write(kLeave);
  tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  close(signals_);
}

void LiveScreen::Measure() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return;
  width_ = size.ws_col;
  height_ = size.ws_row;
}

void LiveScreen::Draw(const std::string& lines) {
  std::string out = "\x1b[H";
  int row = 0;
  size_t begin = 0;
  for (size_t end; row < height_ && (end = lines.find('\n', begin)) != std::string::npos; begin = end + 1) {
    if (row++ > 0) out += "\r\n";
    out.append(lines, begin, end - begin).append("\x1b[K");
  }
  Write(out + "\x1b[J");
}

LiveScreen::Event LiveScreen::Wait(std::chrono::steady_clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd files[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = signals_, .events = POLLIN}};
    if (poll(files, 2, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000))) == 0) {
      return Event::kTimeout;
    }
    signalfd_siginfo signal;
    if (read(signals_, &signal, sizeof(signal)) == sizeof(signal)) {
      if (signal.ssi_signo != SIGWINCH) return Event::kQuit;
      Measure();
      return Event::kResized;
    }
    if (files[0].revents == 0) continue;
    char key = 0;
    if (read(STDIN_FILENO, &key, 1) != 1) return Event::kQuit;  // the terminal is gone
    if (key == 'q' || key == 'Q' || key == kCtrlC || key == kCtrlD) return Event::kQuit;
  }
}

}  // namespace foredraft
