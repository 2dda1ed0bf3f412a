#ifndef FOREDRAFT_SERVER_GROUP_WORKER_PROCESS_H_
#define FOREDRAFT_SERVER_GROUP_WORKER_PROCESS_H_

// A child process of the daemon: this binary once more, as a worker. In a process group of its own, so that
// Ctrl-C reaches the daemon alone, with the daemon's stderr and no other open file. Owner and thread: who
// started it.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace foredraft {

struct WorkerCommand {
  std::vector<std::string> arguments;  // after the program's name
  std::string input;                   // what it reads from stdin: its configuration, environment included
  // The only GPU it sees, as an index into those that the daemon sees.
  std::optional<int> visible_gpu;
};

class WorkerProcess {
 public:
  static absl::StatusOr<WorkerProcess> Start(const WorkerCommand& command);
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&& other) noexcept;
  ~WorkerProcess();  // Kill

  pid_t pid() const { return pid_; }
  // What became of it: "exit code 1", "signal 9"; empty while it runs.
  const std::optional<std::string>& end();
  void Signal(int signal) const;
  // SIGKILL, and waits for its end.
  void Kill();

 private:
  explicit WorkerProcess(pid_t pid) : pid_(pid) {}
  void Reap(int flags);

  pid_t pid_ = -1;  // -1: moved away
  std::optional<std::string> end_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_GROUP_WORKER_PROCESS_H_
