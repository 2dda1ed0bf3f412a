#pragma once

// Threads that work for many clients: reading requests, tokenizing long inputs, compiling constraints. Such a
// job takes up to a second; on the few threads that receive requests, it would hold up all other clients.
// Clients take turns; jobs of one client are done in order of arrival. Some threads may be kept for short
// jobs, which then never wait for a long one. A job's own work runs in OrOutOfMemory (base/out_of_memory.h).
// Thread-safe.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace foredraft {

class TurnPool {
 public:
  // Called once: with OkStatus on a thread of the pool, or with the reason of Close.
  using Job = std::function<void(const absl::Status&)>;
  enum class Size { kShort, kLong };

  struct Options {
    std::string thread_name;  // "tokenize": threads are "tokenize-1" and so on
    int threads = 1;          // take long jobs and, if short_threads is 0, short ones
    int short_threads = 0;    // take short jobs alone
    int nice = 0;         // of the threads for long jobs, so that threads that compute and answer come first
    std::string waiting;  // the error's text after the number of jobs, when too many wait
  };

  TurnPool() = default;
  ~TurnPool();  // Stop

  // Called once.
  void Start(const Options& options);

  // RESOURCE_EXHAUSTED if `max_waiting` jobs wait; after Close, its reason. A job that is refused is not
  // called.
  absl::Status Add(const std::string& client, Size size, int max_waiting, Job job);

  // Calls the waiting jobs with `reason`, on this thread. Running jobs go on.
  void Close(const absl::Status& reason);
  // Close, then joins the threads. Owner's thread; safe to call twice.
  void Stop();

 private:
  struct Turn {
    std::string client;
    std::deque<Job> jobs;  // not empty
  };
  // The jobs of one size that wait.
  struct Queue {
    std::list<Turn> turns;                                       // the next one first
    std::map<std::string, std::list<Turn>::iterator> by_client;  // those in turns

    void Push(const std::string& client, Job job);
    Job Pop();  // turns is not empty
  };

  void StartThread(int nice, bool takes_long, bool takes_short);
  void Run(bool takes_long, bool takes_short);
  Job TakeJob(bool takes_long, bool takes_short);  // empty once closed

  Options options_;  // constant from Start on

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  Queue long_;
  Queue short_;
  int waiting_ = 0;
  absl::Status closed_;

  std::vector<std::thread> threads_;  // owner's thread
};

}  // namespace foredraft
