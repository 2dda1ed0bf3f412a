#pragma once

// A child process of the daemon that runs this binary as a worker. It has a process group of its own, so that
// Ctrl-C reaches only the daemon, and inherits stderr but no other open file of the daemon.
//
// Owner: WorkerGroup. Thread: the owner's.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace foredraft {

struct WorkerCommand {
  std::vector<std::string> arguments;  // after the program's name
  std::string input;                   // the content of its stdin: the complete configuration
  std::string secret;                  // the content of its file kSecretFile (worker_trust.h)
  // The only GPU that it sees, as an index into the GPUs that the daemon sees (gpu_choice.h); empty: it sees
  // all.
  std::optional<int> visible_gpu;
};

class WorkerProcess {
 public:
  // FAILED_PRECONDITION: the daemon sees fewer GPUs; RESOURCE_EXHAUSTED: the system refuses a process.
  static absl::StatusOr<WorkerProcess> Start(const WorkerCommand& command);
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&& other) noexcept;
  ~WorkerProcess();  // Kill

  pid_t pid() const { return pid_; }
  // How it ended: "exit code 1", "signal 9"; empty while it runs.
  const std::optional<std::string>& end();
  void Signal(int signal) const;
  // Sends SIGKILL and waits for the end.
  void Kill();

 private:
  explicit WorkerProcess(pid_t pid) : pid_(pid) {}
  void Reap(int flags);

  pid_t pid_ = -1;  // -1: moved from
  std::optional<std::string> end_;
};

}  // namespace foredraft
