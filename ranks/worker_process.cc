#include "ranks/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "ranks/gpu_choice.h"
#include "ranks/worker_trust.h"

namespace foredraft {
namespace {

absl::Status SystemError(const char* call, int error) {
  return absl::ResourceExhaustedError(absl::StrCat("worker process: ", call, ": ", strerror(error)));
}

// A file in memory, with its read position at the start.
absl::StatusOr<int> FileWith(const std::string& content) {
  const int file = memfd_create("foredraft-worker", MFD_CLOEXEC);
  if (file < 0) return SystemError("memfd_create", errno);
  if (write(file, content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
      lseek(file, 0, SEEK_SET) != 0) {
    const int error = errno;
    close(file);
    return SystemError("write", error);
  }
  return file;
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// The daemon's environment without FOREDRAFT_*: those variables would override the configuration on stdin,
// which already has their values.
absl::StatusOr<std::vector<std::string>> EnvironmentOf(const WorkerCommand& command) {
  constexpr char kGpus[] = "CUDA_VISIBLE_DEVICES=";
  std::vector<std::string> environment;
  std::optional<std::string> gpus;  // that the daemon is restricted to
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view variable(*entry);
    if (absl::StartsWith(variable, "FOREDRAFT_")) continue;
    if (command.visible_gpu.has_value() && absl::StartsWith(variable, kGpus)) {
      gpus = std::string(absl::StripPrefix(variable, kGpus));
    } else {
      environment.emplace_back(*entry);
    }
  }
  if (command.visible_gpu.has_value()) {
    ASSIGN_OR_RETURN(const std::string gpu, GpuOfLocalWorker(gpus, *command.visible_gpu));
    environment.push_back(absl::StrCat(kGpus, gpu));
  }
  return environment;
}

}  // namespace

absl::StatusOr<WorkerProcess> WorkerProcess::Start(const WorkerCommand& command) {
  ASSIGN_OR_RETURN(const std::vector<std::string> environment, EnvironmentOf(command));
  ASSIGN_OR_RETURN(const int input, FileWith(command.input));
  const absl::StatusOr<int> secret = FileWith(command.secret);
  if (!secret.ok()) {
    close(input);
    return secret.status();
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, *secret, kSecretFile);
  posix_spawn_file_actions_addclosefrom_np(&actions, kSecretFile + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::vector<std::string> arguments = {"foredraft"};
  arguments.insert(arguments.end(), command.arguments.begin(), command.arguments.end());
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, Pointers(arguments).data(),
                                Pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(input);
  close(*secret);
  if (error != 0) return SystemError("posix_spawn", error);
  return WorkerProcess(pid);
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), end_(std::move(other.end_)) {}

WorkerProcess& WorkerProcess::operator=(WorkerProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(end_, other.end_);
  return *this;
}

WorkerProcess::~WorkerProcess() { Kill(); }

void WorkerProcess::Reap(int flags) {
  int status = 0;
  if (pid_ < 0 || end_.has_value() || waitpid(pid_, &status, flags) != pid_) return;
  end_ = WIFEXITED(status) ? absl::StrCat("exit code ", WEXITSTATUS(status))
                           : absl::StrCat("signal ", WTERMSIG(status));
}

const std::optional<std::string>& WorkerProcess::end() {
  Reap(WNOHANG);
  return end_;
}

void WorkerProcess::Signal(int signal) const {
  if (pid_ > 0 && !end_.has_value()) kill(pid_, signal);
}

void WorkerProcess::Kill() {
  Signal(SIGKILL);
  Reap(0);
}

}  // namespace foredraft
