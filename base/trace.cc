#include "base/trace.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log.h"

namespace foredraft {
namespace trace_internal {
std::atomic<bool> is_on = false;
}  // namespace trace_internal

namespace {

constexpr size_t kBufferEvents = 1 << 14;  // about 3 MB, twice
constexpr std::chrono::milliseconds kWritePeriod(100);

std::string TrackName(TraceTrack track) {
  if (track == TraceTrack::kScheduler) return "scheduler";
  if (track == TraceTrack::kOutput) return "output";
  return absl::StrCat("rank ", static_cast<int>(track) - static_cast<int>(TraceTrack::kFirstRank));
}

// Writes the trace file, an array that is complete only once the trace has ended, and keeps its older half.
class TraceFile {
 public:
  explicit TraceFile(const TraceOptions& options) : options_(options) {}
  ~TraceFile() { Close(); }

  absl::Status Open() {
    file_ = open(options_.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file_ < 0) return Failed();
    written_ = 0;
    named_.clear();
    return Write("[\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"foredraft\"}}");
  }

  absl::Status Append(const std::vector<TraceEvent>& events, int64_t dropped, TraceTime start) {
    text_.clear();
    for (const TraceEvent& event : events) AppendEvent(event, start);
    if (dropped > 0) {
      absl::StrAppendFormat(
          &text_, ",\n{\"ph\":\"i\",\"pid\":1,\"tid\":1,\"ts\":%s,\"s\":\"g\",\"name\":\"%d spans dropped\"}",
          Microseconds(events.back().end - start), dropped);
    }
    if (absl::Status status = Write(text_); !status.ok()) return status;
    if (written_ < options_.max_bytes / 2) return absl::OkStatus();
    Close();
    if (rename(options_.path.c_str(), (options_.path + ".1").c_str()) != 0) return Failed();
    return Open();
  }

  void Close() {
    if (file_ < 0) return;
    Write("\n]\n").IgnoreError();
    close(file_);
    file_ = -1;
  }

 private:
  static std::string Microseconds(std::chrono::nanoseconds time) {
    const int64_t ns = std::max<int64_t>(time.count(), 0);
    return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000);
  }

  absl::Status Failed() const {
    return absl::UnavailableError(absl::StrCat("--trace: ", options_.path, ": ", strerror(errno)));
  }

  absl::Status Write(std::string_view text) {
    written_ += static_cast<int64_t>(text.size());
    while (!text.empty()) {
      const ssize_t size = write(file_, text.data(), text.size());
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) return Failed();
      text.remove_prefix(static_cast<size_t>(size));
    }
    return absl::OkStatus();
  }

  void AppendEvent(const TraceEvent& event, TraceTime start) {
    const std::string begin = Microseconds(event.begin - start);
    if (event.category != nullptr) {
      const std::string shared =
          absl::StrFormat("\"pid\":1,\"tid\":%d,\"cat\":\"%s\",\"id\":%u,\"name\":\"%s\"",
                          static_cast<int>(TraceTrack::kOutput), event.category, event.id, event.name);
      absl::StrAppend(&text_, ",\n{\"ph\":\"b\",", shared, ",\"ts\":", begin);
      AppendArgs(event);
      absl::StrAppend(&text_, "},\n{\"ph\":\"e\",", shared, ",\"ts\":", Microseconds(event.end - start), "}");
      return;
    }
    NameTrack(event.track);
    absl::StrAppend(&text_, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":", static_cast<int>(event.track),
                    ",\"name\":\"", event.name, "\",\"ts\":", begin,
                    ",\"dur\":", Microseconds(event.end - event.begin));
    AppendArgs(event);
    text_ += "}";
  }

  void AppendArgs(const TraceEvent& event) {
    if (event.args[0].name == nullptr) return;
    text_ += ",\"args\":{";
    const char* separator = "";
    for (const TraceArg& arg : event.args) {
      if (arg.name == nullptr) break;
      absl::StrAppend(&text_, std::exchange(separator, ","), "\"", arg.name, "\":", arg.value);
    }
    text_ += "}";
  }

  // Every file names the tracks that it has.
  void NameTrack(TraceTrack track) {
    if (!named_.insert(track).second) return;
    absl::StrAppendFormat(
        &text_, ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
        static_cast<int>(track), TrackName(track));
    absl::StrAppendFormat(
        &text_,
        ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}",
        static_cast<int>(track), static_cast<int>(track));
  }

  const TraceOptions options_;
  int file_ = -1;
  int64_t written_ = 0;
  std::set<TraceTrack> named_;
  std::string text_;  // a member to keep its capacity
};

class Recorder {
 public:
  absl::Status Start(const TraceOptions& options) {
    CHECK(!writer_.joinable()) << "a trace runs already";
    file_ = std::make_unique<TraceFile>(options);
    if (absl::Status status = file_->Open(); !status.ok()) return status;
    start_ = std::chrono::steady_clock::now();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      events_.clear();  // a thread may have recorded while the previous trace ended
      events_.reserve(kBufferEvents);
      dropped_ = 0;
      stopping_ = false;
    }
    trace_internal::is_on.store(true);
    writer_ = std::thread([this] { Run(); });
    pthread_setname_np(writer_.native_handle(), "trace");
    return absl::OkStatus();
  }

  void Stop() {
    if (!writer_.joinable()) return;
    trace_internal::is_on.store(false);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    writer_.join();
    file_.reset();
  }

  void Record(const TraceEvent& event) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (events_.size() == kBufferEvents) {
      ++dropped_;
      return;
    }
    events_.push_back(event);
    if (events_.size() == kBufferEvents / 2) changed_.notify_one();
  }

 private:
  void Run() {
    std::vector<TraceEvent> batch;
    batch.reserve(kBufferEvents);
    for (bool last = false; !last;) {
      int64_t dropped = 0;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait_for(lock, kWritePeriod,
                          [this] { return stopping_ || events_.size() >= kBufferEvents / 2; });
        last = stopping_;
        std::swap(batch, events_);
        dropped = std::exchange(dropped_, 0);
      }
      if (batch.empty()) continue;
      if (const absl::Status status = file_->Append(batch, dropped, start_); !status.ok()) {
        trace_internal::is_on.store(false);
        Log(LogLevel::kError, "the trace ends: %s", status.message());
        return;
      }
      batch.clear();
    }
  }

  std::unique_ptr<TraceFile> file_;  // used by the writer thread alone while that runs
  TraceTime start_;
  std::thread writer_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TraceEvent> events_;  // guarded by mutex_
  int64_t dropped_ = 0;             // guarded by mutex_
  bool stopping_ = false;           // guarded by mutex_
};

// Never destroyed: threads may record until the process ends.
Recorder& TheRecorder() {
  static Recorder* const recorder = new Recorder();
  return *recorder;
}

}  // namespace

absl::Status StartTrace(const TraceOptions& options) { return TheRecorder().Start(options); }
void StopTrace() { TheRecorder().Stop(); }

void RecordTrace(const TraceEvent& event) {
  if (TraceIsOn()) TheRecorder().Record(event);
}

void TraceScope::Begin(TraceTrack track, const char* name) {
  event_ = {.name = name, .track = track, .begin = std::chrono::steady_clock::now()};
}

void TraceScope::End() {
  event_->end = std::chrono::steady_clock::now();
  RecordTrace(*event_);
}

}  // namespace foredraft
