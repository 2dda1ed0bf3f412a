#ifndef FOREDRAFT_SERVER_START_OBSERVER_H_
#define FOREDRAFT_SERVER_START_OBSERVER_H_

// Progress of a daemon's start, for a screen or a test. Called on the thread that starts the daemon.

#include <cstdint>
#include <string>

#include "config/config.h"

namespace foredraft {

struct ModelFacts {
  std::string device;          // "cpu avx512-bf16"; of rank 0
  std::string numerics_class;  // 8 hex digits
  int64_t parameters = 0;      // of the target and all MTP modules
  int64_t bytes = 0;           // in the checkpoint
  int mtp_modules = 0;         // in the checkpoint
  int64_t cache_blocks = 0;    // of a rank; 0 = decided by the memory that the weights leave
  int tokens_per_block = 0;
  int ranks = 1;
};

class StartObserver {
 public:
  virtual ~StartObserver() = default;
  // The start waits for `what`, which others provide. Called when the wait begins and now and then during it.
  virtual void Waiting(const std::string& what) = 0;
  virtual void ModelKnown(const Config& config, const ModelFacts& facts) = 0;
  virtual void Loading(int rank, int64_t done_bytes, int64_t total_bytes) = 0;
  virtual void WarmedUp(int graph_count, double seconds) = 0;
  virtual void Serving(const std::string& grpc_address, const std::string& metrics_address) = 0;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_START_OBSERVER_H_
