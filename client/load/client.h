#ifndef FOREDRAFT_CLIENT_LOAD_CLIENT_H_
#define FOREDRAFT_CLIENT_LOAD_CLIENT_H_

// Connections to a daemon, and streams over them that are timed. gRPC's callback API: any number of streams
// on the few threads that gRPC has anyway.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client_connection.h"
#include "client/load/measured_request.h"
#include "foredraft/v1/generation.grpc.pb.h"

namespace foredraft {

// One stream. Start once; then it lives until `done`, which is called on a thread of gRPC. Cancel from any
// thread.
class TimedCall : public grpc::ClientReadReactor<v1::GenerateChunk> {
 public:
  struct Options {
    std::chrono::steady_clock::time_point run_start;
    std::optional<double> timeout_s;        // of the request
    std::atomic<int64_t>* received_tokens;  // outlives the call
    // Lets go of the call before the run may end: with the connection's last reference, dropped on a thread
    // of its own, gRPC would pull down what that thread stands on.
    std::function<void(std::shared_ptr<TimedCall>)> done;
  };

  TimedCall(v1::GenerationService::Stub& stub, v1::GenerateRequest request, int64_t index, double due_s,
            Options options);

  void Start(std::shared_ptr<TimedCall> self);
  void Cancel();

  MeasuredRequest& measured() { return measured_; }  // whole once `done` is called

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  double Now() const;

  v1::GenerationService::Stub& stub_;
  const v1::GenerateRequest request_;
  const Options options_;
  grpc::ClientContext context_;
  v1::GenerateChunk chunk_;
  MeasuredRequest measured_;
  std::atomic<bool> cancelled_ = false;
  std::shared_ptr<TimedCall> self_;  // from Start to OnDone
};

class BenchClient {
 public:
  // Opens all connections and asks for the model. The error is the one that `generate` prints.
  static absl::StatusOr<std::unique_ptr<BenchClient>> Connect(const ServerAddress& server, int connections);

  const v1::GetModelResponse& model() const { return model_; }
  const std::string& address() const { return address_; }
  int connections() const { return static_cast<int>(stubs_.size()); }

  // Over the connections in turn. Any thread.
  std::shared_ptr<TimedCall> NewCall(v1::GenerateRequest request, int64_t index, double due_s,
                                     TimedCall::Options options);

 private:
  BenchClient() = default;

  std::string address_;
  v1::GetModelResponse model_;
  std::vector<std::unique_ptr<v1::GenerationService::Stub>> stubs_;
  std::atomic<uint64_t> next_stub_ = 0;
};

}  // namespace foredraft

#endif  // FOREDRAFT_CLIENT_LOAD_CLIENT_H_
