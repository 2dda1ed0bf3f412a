#pragma once

// Connections to a daemon, and timed streams over them. They use gRPC's callback API, so any number of
// streams shares the few threads of gRPC.

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
#include "client/connection/client_connection.h"
#include "client/load/measured_request.h"
#include "foredraft/v1/generation.grpc.pb.h"

namespace foredraft {

// One stream. Call Start once. The call then owns itself until it passes itself to `done`, on a gRPC thread.
// Any thread may call Cancel.
class TimedCall : public grpc::ClientReadReactor<v1::GenerateChunk> {
 public:
  struct Options {
    std::chrono::steady_clock::time_point run_start;
    std::optional<double> timeout_s;        // of the request
    std::atomic<int64_t>* received_tokens;  // outlives the call
    bool keeps_answer = false;              // for the next turn of the chat
    // Receives the finished call, on a gRPC thread, and must destroy it before the run ends. A call holds a
    // reference to its channel; if it were the last one, destroying it here would destroy the completion
    // queue that this thread polls.
    std::function<void(std::shared_ptr<TimedCall>)> done;
  };

  // `measured` says which request this is and when it is due.
  TimedCall(v1::GenerationService::Stub& stub, v1::GenerateRequest request, MeasuredRequest measured,
            Options options);

  void Start(std::shared_ptr<TimedCall> self);
  void Cancel();

  // Complete when `done` is called.
  MeasuredRequest& measured() { return measured_; }
  const std::string& answer() const { return answer_; }  // without its thinking; empty unless keeps_answer
  bool keeps_answer() const { return options_.keeps_answer; }
  const v1::GenerateRequest& request() const { return request_; }

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
  std::string answer_;
  std::atomic<bool> cancelled_ = false;
  std::shared_ptr<TimedCall> self_;  // from Start to OnDone
};

class BenchClient {
 public:
  // Opens all connections and calls GetModel. Errors have the texts of `generate`.
  static absl::StatusOr<std::unique_ptr<BenchClient>> Connect(const ServerAddress& server, int connections);

  const std::string& address() const { return address_; }
  const v1::GetModelResponse& model() const { return model_; }
  int connections() const { return static_cast<int>(stubs_.size()); }

  // Uses the connections in turn. Any thread may call it.
  std::shared_ptr<TimedCall> NewCall(v1::GenerateRequest request, MeasuredRequest measured,
                                     TimedCall::Options options);

 private:
  BenchClient() = default;

  std::string address_;
  v1::GetModelResponse model_;
  std::vector<std::unique_ptr<v1::GenerationService::Stub>> stubs_;
  std::atomic<uint64_t> next_stub_ = 0;
};

}  // namespace foredraft
