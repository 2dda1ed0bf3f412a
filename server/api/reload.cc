#include "server/api/reload.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <variant>

#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/log_level.h"
#include "base/status_macros.h"
#include "config/config_fields.h"
#include "config/config_yaml.h"

namespace foredraft {
namespace {

// `to` with the values of `keys` from `from`. A block that comes back begins as in `started`.
Config WithKeys(Config to, Config from, const Config& started, const std::vector<std::string>& keys) {
  // A file without the block means no drafts: K = 0.
  if (!from.speculative_config.has_value()) from.speculative_config.emplace().max_draft_len = 0;
  for (const std::string& key : keys) {
    if (key == "constraints") to.constraints = from.constraints ? started.constraints : std::nullopt;
    const ConfigField* field = FindField(key);
    if (field == nullptr) continue;  // a block that was added or removed; its keys are listed too
    std::visit([&](auto member) { member(to) = member(from); }, field->member);
  }
  return to;
}

// Called once the new log level is in force.
void LogChanges(const Config& before, const Config& after, const std::vector<std::string>& keys) {
  if (!IsLogged(LogLevel::kDebug)) return;
  for (const std::string& key : keys) {
    const ConfigField* const field = FindField(key);
    if (field == nullptr) continue;  // a block
    const std::string_view block = BlockOf(field->path);
    if (!block.empty() && !(BlockPresent(before, block) && BlockPresent(after, block))) continue;
    Log(LogLevel::kDebug, "configuration: %s: %s, was %s", key, ShowField(*field, after),
        ShowField(*field, before));
  }
}

}  // namespace

absl::StatusOr<ReloadReport> Reloader::Reload(Metrics& metrics) {
  std::lock_guard<std::mutex> lock(mutex_);
  absl::StatusOr<ReloadReport> report = TryReload();
  metrics.RecordReload(report.ok());
  if (!report.ok()) {
    Log(LogLevel::kError, "configuration not reloaded, the old one stays in effect: %s",
        report.status().message());
    return report;
  }
  const bool same = report->restart_keys == waiting_keys_;
  const std::string waiting = absl::StrJoin(report->restart_keys, ", ");
  if (!report->applied_keys.empty()) {
    Log(LogLevel::kInfo, "configuration reloaded: %s", absl::StrJoin(report->applied_keys, ", "));
  } else if (same) {
    Log(LogLevel::kInfo, "configuration reloaded: nothing changed since the last time");
  } else {
    Log(LogLevel::kInfo, "configuration reloaded: nothing takes effect now");
  }
  if (same && !waiting.empty()) {
    Log(LogLevel::kInfo, "keys that still wait for a restart: %s", waiting);
  } else if (!waiting.empty()) {
    Log(LogLevel::kWarning, "changed keys that take effect only after a restart: %s", waiting);
  }
  waiting_keys_ = report->restart_keys;
  return report;
}

absl::StatusOr<ReloadReport> Reloader::TryReload() {
  ASSIGN_OR_RETURN(const Config next, read_());
  const Config before = current_;
  const ConfigDifference difference = ReloadableDifference(started_, current_, next);
  current_ = WithKeys(current_, next, started_, difference.reloaded);
  apply_(current_);
  LogChanges(before, current_, difference.reloaded);
  return ReloadReport{.applied_keys = difference.reloaded, .restart_keys = difference.need_restart};
}

void Reloader::ApplyCurrent() {
  std::lock_guard<std::mutex> lock(mutex_);
  apply_(current_);
}

Config Reloader::current() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return current_;
}

}  // namespace foredraft
