#pragma once

// A timeline of what the process does, as a file in Chrome's trace event format, which ui.perfetto.dev and
// chrome://tracing open. One trace per process, like the log. While none runs, a span costs one branch.
//
// Spans go to a buffer in memory; a thread of the trace's own writes them, several times a second. A thread
// that records never waits for the disk: if the disk is too slow, spans are dropped and counted. The file is
// an array of one event per line. A process that is killed leaves an array without its end, as the format
// allows.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace foredraft {

struct TraceOptions {
  std::string path;
  // The limit of `path` and `path`.1 together. When half of it is written, the file is renamed `path`.1, in
  // place of an older one, and a new file begins: the newest events are always kept.
  int64_t max_bytes = int64_t{64} << 20;
};

// Starts the trace; none may run. Errors name the file.
absl::Status StartTrace(const TraceOptions& options);
// Writes what was recorded and ends the file. No effect if no trace runs.
void StopTrace();

// One row of the timeline. Spans of a track nest or follow each other.
enum class TraceTrack : int32_t {
  kScheduler = 1,
  kOutput = 2,
  kFirstRank = 100,  // + rank
};
constexpr TraceTrack RankTrack(int rank) {
  return static_cast<TraceTrack>(static_cast<int32_t>(TraceTrack::kFirstRank) + rank);
}

using TraceTime = std::chrono::steady_clock::time_point;

struct TraceArg {
  const char* name = nullptr;  // a literal
  int64_t value = 0;
};
inline constexpr int kMaxTraceArgs = 6;

struct TraceEvent {
  const char* name = nullptr;  // a literal
  TraceTrack track = TraceTrack::kScheduler;
  TraceTime begin, end;
  // Not null: the event is of a request (`id`) and may overlap others; requests have rows of their own, one
  // per category.
  const char* category = nullptr;
  uint64_t id = 0;
  std::array<TraceArg, kMaxTraceArgs> args = {};  // up to the first without a name
};

namespace trace_internal {
extern std::atomic<bool> is_on;
}

inline bool TraceIsOn() { return trace_internal::is_on.load(std::memory_order_relaxed); }
// Records an event, if a trace runs. Any thread; never waits for the disk.
void RecordTrace(const TraceEvent& event);

// A span from here to the end of the scope.
class TraceScope {
 public:
  TraceScope(TraceTrack track, const char* name) {
    if (TraceIsOn()) Begin(track, name);
  }
  ~TraceScope() {
    if (event_.has_value()) End();
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

  // At most kMaxTraceArgs.
  void Add(const char* name, int64_t value) {
    if (event_.has_value()) event_->args[arg_count_++] = {.name = name, .value = value};
  }

 private:
  void Begin(TraceTrack track, const char* name);
  void End();

  std::optional<TraceEvent> event_;  // while a trace runs
  int arg_count_ = 0;
};

}  // namespace foredraft
