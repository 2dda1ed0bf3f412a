#pragma once

// Threads that tokenize long inputs and compile constraints. Either takes up to a second, and gRPC has few
// threads: working on them would stop all other calls. Clients take turns; inputs of one client are tokenized
// in order of arrival. The threads have a lower priority (nice 5) than those that compute and answer.
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

class TokenizerPool {
 public:
  // Called once: with OkStatus on a thread of the pool, or with the reason of Close.
  using Job = std::function<void(const absl::Status&)>;

  TokenizerPool() = default;
  ~TokenizerPool();  // Close, then joins the threads

  void Start(int threads);

  // RESOURCE_EXHAUSTED if `max_waiting` jobs wait, the reason of Close after it; the job is then not called.
  absl::Status Add(const std::string& client, int max_waiting, Job job);

  // Ends the jobs that wait with `reason`, here and now. Jobs that run go on.
  void Close(const absl::Status& reason);

 private:
  struct Turn {
    std::string client;
    std::deque<Job> jobs;  // not empty
  };

  void Run();
  Job TakeJob();  // empty once closed

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::list<Turn> turns_;                                       // the next one first
  std::map<std::string, std::list<Turn>::iterator> by_client_;  // those in turns_
  int waiting_ = 0;
  absl::Status closed_;

  std::vector<std::thread> threads_;  // owner's thread
};

}  // namespace foredraft
