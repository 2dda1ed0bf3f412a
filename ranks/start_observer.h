#pragma once

// Receives the progress of a daemon's start, on the thread that starts it: the screen, a log, or a test.
// Events come in the order of the functions below; Waiting and Loading come repeatedly, Waiting at any time
// before Loading ends. A function that is not overridden ignores its event.

#include <cstdint>
#include <string>

#include "config/config.h"

namespace foredraft {

// What the checkpoint and the configuration say, known before a rank starts.
struct ModelSummary {
  int64_t parameters = 0;    // of the target and all MTP modules
  int64_t bytes = 0;         // in the checkpoint
  int mtp_modules = 0;       // in the checkpoint
  int stages = 0;            // of the checkpoint's own drafter, in the place of MTP modules
  int64_t cache_blocks = 0;  // per rank; 0 = decided by the memory that is free after loading
  int tokens_per_block = 0;
  int ranks = 1;
};

// What only the ranks know. The counts are set once all ranks are ready.
struct RankGroupSummary {
  std::string device;          // "cpu avx512-bf16"; of rank 0
  std::string numerics_class;  // 8 hex digits; of all ranks
  int block_count = 0;         // of the smallest KV cache, including the scratch block
  int graph_count = 0;
};

// Where the daemon listens; empty: no such listener.
struct ServedAddresses {
  std::string grpc;
  std::string metrics;
  std::string openai;   // a URL
  std::string gateway;  // empty: gateways use grpc
};

class StartObserver {
 public:
  virtual ~StartObserver() = default;
  virtual void ModelKnown(const Config&, const ModelSummary&) {}
  // The start waits for something outside this process, such as a worker of another host.
  virtual void Waiting(const std::string& /*what*/) {}
  // Device and numerics class are known.
  virtual void RanksKnown(const RankGroupSummary&) {}
  virtual void Loading(int /*rank*/, int64_t /*done_bytes*/, int64_t /*total_bytes*/) {}
  // All weights are loaded; every step now runs for the first time, which may take minutes.
  virtual void WarmingUp() {}
  virtual void WarmedUp(int /*graph_count*/, double /*seconds*/) {}
  virtual void Serving(const ServedAddresses&) {}
};

}  // namespace foredraft
