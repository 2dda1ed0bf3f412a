#pragma once

// The thread between the scheduler and the clients: it decides what each client gets and when its stream
// ends. All events reach it through one queue, in order: a stream is opened before its request is submitted,
// and the request's updates follow. No gRPC: calls are ResponseSinks.
//
// clang-format off
// | event | from | effect |
// |---|---|---|
// | opened | gRPC thread | adds the stream |
// | refused | gRPC thread | the loop refused the request: ends the call and counts it as rejected |
// | cancelled | gRPC thread | the client is gone: ends the stream and cancels the sequence |
// | updates | scheduler thread | text, accounting, chunks; a stop string cancels the sequence |
// | end all | drain | ends all streams with a status |
// clang-format on

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/bounded_queue.h"
#include "scheduler/request.h"
#include "server/output/metrics.h"
#include "server/output/output_stream.h"
#include "server/output/response_sink.h"

namespace foredraft {

struct OutputThreadOptions {
  size_t queue_capacity = 1 << 16;  // events; the scheduler makes one per iteration
  // How long after its stream's end a call whose client does not read is abandoned.
  std::chrono::steady_clock::duration write_timeout = std::chrono::seconds(30);
};

class OutputThread {
 public:
  // Tells the serving loop to end a sequence. Called on the output thread; must not block.
  using CancelSequence = std::function<void(uint64_t id, FinishReason reason)>;

  OutputThread(const OutputThreadOptions& options, Metrics& metrics, CancelSequence cancel_sequence);
  ~OutputThread();  // Stop

  // Open, Refused, ClientCancelled, Deliver and EndAll may be called from any thread.
  void Open(std::unique_ptr<OutputStream> stream, std::shared_ptr<ResponseSink> sink);
  // The loop refused an opened request.
  void Refused(uint64_t id, absl::Status status);
  void ClientCancelled(uint64_t id);
  // The UpdateSink of the serving loop.
  void Deliver(std::vector<RequestUpdate> updates);
  // Ends every open stream with `status` and cancels its sequence.
  void EndAll(absl::Status status);

  // Streams that were opened and have neither ended nor been refused.
  int open_count() const { return open_count_.load(); }

  // When the thread began its last turn: at most half a second ago unless it is busy.
  SteadyTime last_turn() const { return last_turn_.load(); }

  // Handles the events in the queue, then joins the thread. Safe to call twice.
  void Stop();

 private:
  struct Opened {
    std::unique_ptr<OutputStream> stream;
    std::shared_ptr<ResponseSink> sink;
  };
  struct RefusedId {
    uint64_t id;
    absl::Status status;
  };
  struct CancelledId {
    uint64_t id;
  };
  using Event = std::variant<Opened, RefusedId, CancelledId, std::vector<RequestUpdate>, absl::Status>;
  struct StreamOutput {  // of one update
    uint64_t id;
    OutputDelta delta;
    bool is_last;
  };
  struct Closing {  // a call whose stream has ended
    std::weak_ptr<ResponseSink> sink;
    SteadyTime deadline;
  };

  void Push(Event event);
  void Run();
  void On(Opened opened);
  void On(RefusedId refused);
  void On(CancelledId cancelled);
  void On(std::vector<RequestUpdate> updates);
  void On(const absl::Status& end_all);
  void ApplyAll(std::vector<RequestUpdate> updates, SteadyTime now);
  // Passes a stream's output to its call.
  void Send(StreamOutput output);
  void EndEarly(uint64_t id, FinishReason finish, absl::Status status);
  // Ends the call and removes the stream.
  void Close(uint64_t id, OutputDelta last);
  // Abandons calls that have ended and whose clients do not read.
  void AbandonStalled(SteadyTime now);

  const OutputThreadOptions options_;
  Metrics& metrics_;
  const CancelSequence cancel_sequence_;
  BoundedQueue<Event> events_;
  std::atomic<int> open_count_ = 0;
  std::atomic<SteadyTime> last_turn_{std::chrono::steady_clock::now()};

  // Output thread only.
  absl::flat_hash_map<uint64_t, Opened> streams_;
  std::vector<StreamOutput> outputs_;  // of the updates being handled; a member to keep its capacity
  std::vector<Closing> closing_;

  std::thread thread_;
};

}  // namespace foredraft
