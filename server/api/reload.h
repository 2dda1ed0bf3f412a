#ifndef FOREDRAFT_SERVER_API_RELOAD_H_
#define FOREDRAFT_SERVER_API_RELOAD_H_

// Takes a changed configuration file into the running daemon (SIGHUP, AdminService.ReloadConfig). A bad file
// is refused and the old configuration stays; keys that need a restart keep the value they were started with.
// Thread-safe.

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/config_reader.h"
#include "server/output/metrics.h"

namespace foredraft {

struct ReloadReport {
  std::vector<std::string> applied_keys;
  std::vector<std::string> restart_keys;  // changed in the file, but taken only at the next start
};

class Reloader {
 public:
  // The file as it is now, with the environment and flags of the start, defaults resolved.
  using Read = std::function<absl::StatusOr<Config>()>;
  // Puts a configuration in force; only reloadable keys differ from the one before.
  using Apply = std::function<void(const Config&)>;

  Reloader(Config started, Read read, Apply apply)
      : started_(started), read_(std::move(read)), apply_(std::move(apply)), current_(std::move(started)) {}

  // Counts and logs what came of it.
  absl::StatusOr<ReloadReport> Reload(Metrics& metrics);

  Config current() const;
  // Puts the current configuration in force once more: for who was not there yet when it changed.
  void ApplyCurrent();

 private:
  absl::StatusOr<ReloadReport> Take();  // holds mutex_

  const Config started_;
  const Read read_;
  const Apply apply_;
  mutable std::mutex mutex_;
  Config current_;  // guarded by mutex_
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_API_RELOAD_H_
