#pragma once

// Applies a changed configuration file to the running daemon (SIGHUP, AdminService.ReloadConfig). A bad file
// is refused and the old configuration stays. Keys that need a restart keep the value that the daemon started
// with. Thread-safe.

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
  std::vector<std::string> restart_keys;  // changed in the file, but they take effect only after a restart
};

class Reloader {
 public:
  // Reads the file again, with the environment and flags of the start, and resolves the defaults.
  using Read = std::function<absl::StatusOr<Config>()>;
  // Applies a configuration; only reloadable keys differ from the one before.
  using Apply = std::function<void(const Config&)>;

  Reloader(Config started, Read read, Apply apply)
      : started_(started), read_(std::move(read)), apply_(std::move(apply)), current_(std::move(started)) {}

  // Counts and logs the result.
  absl::StatusOr<ReloadReport> Reload(Metrics& metrics);

  Config current() const;
  // Applies the current configuration again, for parts that did not exist when it last changed.
  void ApplyCurrent();

 private:
  absl::StatusOr<ReloadReport> TryReload();  // the caller holds mutex_

  const Config started_;
  const Read read_;
  const Apply apply_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Config current_;
  std::vector<std::string> waiting_keys_;  // restart_keys of the last reload
};

}  // namespace foredraft
