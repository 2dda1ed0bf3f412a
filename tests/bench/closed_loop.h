#pragma once

// A model, its scheduler and serving loop in process, and closed-loop clients: tokens per second without a
// server.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/local_executor.h"
#include "scheduler/serving_loop.h"
#include "tests/engine/engine_harness.h"

namespace foredraft {

class ClosedLoop {
 public:
  struct Stage {
    int64_t tokens = 0;
    int64_t steps = 0;  // decode steps of requests
    double seconds = 0;

    double rate() const { return static_cast<double>(tokens) / seconds; }
  };

  ClosedLoop(const LoadedModel& model, const Setting& setting);
  ~ClosedLoop();

  // Runs all of `requests`, `streams` at a time.
  Stage Run(int streams, const std::vector<Request>& requests);

 private:
  void Take(const std::vector<RequestUpdate>& updates);

  std::unique_ptr<LocalExecutor> executor_;
  std::unique_ptr<ServingLoop> loop_;
  uint64_t next_id_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  int open_ = 0;
  int64_t tokens_ = 0;
  int64_t steps_ = 0;
};

}  // namespace foredraft
