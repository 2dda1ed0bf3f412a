#ifndef FOREDRAFT_SERVER_OUTPUT_OUTPUT_THREAD_H_
#define FOREDRAFT_SERVER_OUTPUT_OUTPUT_THREAD_H_

// The thread between the scheduler and the clients: it rules what each client gets. Everything reaches it
// through one queue, so the order is that of the events: a stream is opened before its request is submitted,
// and its updates follow. No gRPC here: calls are ResponseSinks.
//
// | event | from | does |
// |---|---|---|
// | open | gRPC thread | knows the request |
// | refused | gRPC thread | the loop did not take it: ends the call, counted as rejected |
// | cancelled | gRPC thread | client went away: ends the stream, cancels the sequence |
// | updates | scheduler thread | text, books, chunks; a stop string cancels the sequence |
// | end all | drain | ends what is left with a status |

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
  // A call whose stream has ended but whose client does not read is given up after this long.
  std::chrono::steady_clock::duration write_timeout = std::chrono::seconds(30);
};

class OutputThread {
 public:
  // Asks the loop to end a sequence; called on the output thread, must not block.
  using CancelSequence = std::function<void(uint64_t id, FinishReason reason)>;

  OutputThread(const OutputThreadOptions& options, Metrics& metrics, CancelSequence cancel_sequence);
  ~OutputThread();  // Stop

  // The following five may be called from any thread.
  void Open(std::unique_ptr<OutputStream> stream, std::shared_ptr<ResponseSink> sink);
  // The loop refused an opened request.
  void Refused(uint64_t id, absl::Status status);
  void ClientCancelled(uint64_t id);
  // The UpdateSink of the serving loop.
  void Deliver(std::vector<RequestUpdate> updates);
  // Ends every open stream with `status` and cancels its sequence.
  void EndAll(absl::Status status);

  // Streams opened and neither ended nor refused.
  int open_count() const { return open_count_.load(); }

  // Rules on what is in the queue, then joins the thread. Safe to call twice.
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
  struct Ruled {  // an update's outcome
    uint64_t id;
    OutputDelta delta;
    bool is_last;
  };
  struct Closing {
    std::weak_ptr<ResponseSink> sink;
    SteadyTime deadline;
  };

  void Push(Event event);
  void Run();
  void On(Opened opened);
  void On(RefusedId refused);
  void On(CancelledId cancelled);
  void On(std::vector<RequestUpdate> updates);
  void On(absl::Status end_all);
  // Hands the client what a stream made of an update.
  void Hand(uint64_t id, OutputDelta delta, bool is_last);
  void EndEarly(uint64_t id, FinishReason finish, absl::Status status);
  // Hands the sink its end and forgets the stream.
  void Close(uint64_t id, OutputDelta last);
  // Gives up calls that have ended and whose clients do not read.
  void AbandonStalled(SteadyTime now);

  const OutputThreadOptions options_;
  Metrics& metrics_;
  const CancelSequence cancel_sequence_;
  BoundedQueue<Event> events_;
  std::atomic<int> open_count_ = 0;
  absl::flat_hash_map<uint64_t, Opened> streams_;  // output thread
  std::vector<Ruled> ruled_;                       // output thread; of the updates in hand
  std::vector<Closing> closing_;                   // output thread
  std::thread thread_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_OUTPUT_OUTPUT_THREAD_H_
