#ifndef FOREDRAFT_TESTS_BENCH_STREAM_CLIENTS_H_
#define FOREDRAFT_TESTS_BENCH_STREAM_CLIENTS_H_

// A closed loop of streaming clients on gRPC's callback API: whenever a stream ends, another begins. Meant
// for a process of its own, so that what it costs can be told from what the server costs.

#include <grpcpp/channel.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "foredraft/v1/generation.grpc.pb.h"

namespace foredraft {

struct StreamClientsOptions {
  std::string address;
  int streams = 256;
  int channels = 4;  // connections that the streams share
  v1::GenerateRequest request;
};

class StreamClients {
 public:
  // Starts the streams.
  explicit StreamClients(const StreamClientsOptions& options);
  ~StreamClients();  // cancels what is open and waits for it

  int64_t tokens() const { return tokens_.load(std::memory_order_relaxed); }
  int64_t chunks() const { return chunks_.load(std::memory_order_relaxed); }
  int64_t requests() const { return requests_.load(std::memory_order_relaxed); }  // that ended well

 private:
  class Stream;

  void StartNext(int channel);
  void Ended(Stream* stream, const grpc::Status& status);

  const StreamClientsOptions options_;
  std::vector<std::unique_ptr<v1::GenerationService::Stub>> stubs_;  // [channels]
  std::atomic<int64_t> tokens_ = 0;
  std::atomic<int64_t> chunks_ = 0;
  std::atomic<int64_t> requests_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;      // guarded by mutex_
  std::set<Stream*> streams_;  // guarded by mutex_
};

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_STREAM_CLIENTS_H_
