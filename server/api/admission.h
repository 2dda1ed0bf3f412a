#pragma once

// Accepts generation requests of every wire into the server: checks that the server serves, validates the
// request, gives it an id and a deadline, opens its stream at the output thread and submits it to the serving
// loop. The request then waits for a decode slot; the scheduler's admission (SlotAdmission in
// scheduler/plan.h) gives it one. Nothing here waits for the engine. Counts the calls that are still open.
// Thread-safe.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/turn_pool.h"
#include "scheduler/serving_loop.h"
#include "server/api/access.h"
#include "server/api/call_context.h"
#include "server/api/client_request.h"
#include "server/api/generation_call.h"
#include "server/api/health.h"
#include "server/api/model_card.h"
#include "server/api/name_log.h"
#include "server/api/request_validator.h"
#include "server/output/metrics.h"
#include "server/output/output_thread.h"

namespace foredraft {

// The parts that exist once the model is loaded. They outlive the calls.
struct ServingParts {
  const Tokenizer* tokenizer = nullptr;
  const RequestValidator* validator = nullptr;
  ServingLoop* loop = nullptr;
  OutputThread* output = nullptr;
  ModelCard model;
};

// Keeps one client from filling the queue: counts each client's requests that have no token yet.
// Thread-safe.
class QueueShare {
 public:
  // A request's place; destroying the last copy gives it back.
  using Place = std::shared_ptr<const void>;

  // RESOURCE_EXHAUSTED: `client` has `max` places. Places may outlive this object.
  absl::StatusOr<Place> Take(const std::string& client, int max);

 private:
  struct Counts {
    std::mutex mutex;
    std::map<std::string, int> taken;  // guarded by mutex; no entry is 0
  };
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

// Gives each name a number, from 1 on; the empty name has 0. The names are those of the file's tokens: few,
// so none is ever forgotten. Thread-safe.
class NumberedNames {
 public:
  uint64_t NumberOf(const std::string& name);

 private:
  std::mutex mutex_;
  std::map<std::string, uint64_t> numbers_;  // guarded by mutex_
};

// Who `peer` (CallContext::peer) is, without the port: "ipv4:10.0.0.7".
std::string ClientOf(const std::string& peer);
// Whose turn a request takes: `caller`, the name of its token; without a token, ClientOf(peer).
std::string ClientName(const std::string& peer, const std::string& caller);

// Bytes of an input that have to be tokenized; 0 for token ids.
size_t TextBytes(const PromptInput& input);

struct AdmissionLimits {
  int request_timeout_s = 600;
  double max_queue_share = 1;  // one client's largest share of max_queue_size; 1: no cap
  int max_queue_size = 1024;
  int tokenizer_threads = 1;
  bool reuse_by_token = false;  // prompts share blocks only under the same token's name
};

// A request that has not been read yet. The choices of one message share its content until they are read.
struct WaitingRequest {
  std::string request_id;       // empty: the server makes one
  bool is_constrained = false;  // constraint_check.h
  int choices = 1;              // of its prompt, for the metric; 0: another choice has counted them
  size_t text_bytes = 0;        // to be tokenized in the turn in which `take` is called
  // Makes the request, with any request_id. Called at most once, on the thread that reads it.
  std::function<ClientRequest()> take;
};

class Admission {
 public:
  // Health and metrics outlive the admission.
  Admission(const AdmissionLimits& limits, const Health& health, Metrics& metrics)
      : health_(health),
        metrics_(metrics),
        max_queue_share_(limits.max_queue_share),
        reuse_by_token_(limits.reuse_by_token),
        tokenizer_threads_(limits.tokenizer_threads),
        request_timeout_s_(limits.request_timeout_s),
        max_queue_size_(limits.max_queue_size) {}

  // Called once, before health enters serving.
  void Open(ServingParts parts);
  // The parts, or UNAVAILABLE while the model is loading.
  absl::StatusOr<const ServingParts*> Parts() const;

  void SetRequestTimeout(int seconds) { request_timeout_s_.store(seconds); }
  // Sets the queue size of which each client has a share; the queue itself is the loop's.
  void SetMaxQueueSize(int max_queue_size) { max_queue_size_.store(max_queue_size); }

  // Counts a call as open until its `done` hook.
  CallHooks OpenCall();
  // Submits the call's request if `access` lets its caller generate, otherwise refuses the call with the
  // reason. Does so at once or, where the input is long or the output constrained, after a thread of the pool
  // has read the request. Gives the answer its id (request_id.h).
  void Submit(const Access& access, ClientRequest request, std::shared_ptr<GenerationCall> call);
  void Submit(const Access& access, WaitingRequest request, std::shared_ptr<GenerationCall> call);
  // Ends, counts and logs a call that is not submitted; a wire calls it where it cannot read a message.
  void Refuse(const std::string& request_id, const absl::Status& status,
              const std::shared_ptr<GenerationCall>& call);

  // Counts and logs the fields without effect of a request that its wire refuses before it is submitted.
  void RecordNotes(NotedWire wire, const FieldNotes& notes);

  // Counts a request that its wire refuses without a call.
  void CountRefusal(const absl::Status& status) { metrics_.RecordRefused(OutcomeOfRefusal(status)); }

  // Calls `tokenize` with OkStatus, here or, if the input has more than a few bytes, on a thread of the pool.
  // Calls it with an error, here or later, if the queue is full or the server stops. `client` is from
  // ClientName.
  void Tokenize(const std::string& client, size_t input_bytes, const TurnPool::Job& tokenize);
  // Refuses inputs that wait to be tokenized, now and later.
  void EndTokenizing() { pool_.Close(absl::UnavailableError("draining: the daemon stops")); }

  // Calls whose answers are not finished.
  int open_calls() const;
  // Waits until no call is open. False: the deadline came first.
  bool WaitForNoCalls(SteadyTime deadline) const;

 private:
  // A request whose caller may generate, before its input is tokenized.
  struct Arrived {
    std::function<ClientRequest()> take;
    std::string request_id;
    SteadyTime time;
    std::string caller;  // the name of its token, if it has one
    int choices = 1;     // WaitingRequest::choices
    QueueShare::Place place;
  };

  absl::StatusOr<Arrived> Arrive(const CallContext& context, const Access& access, WaitingRequest request);
  // Reads and submits the request, or says why not; Refuse then ends the call.
  absl::Status Accept(Arrived& arrived, const std::shared_ptr<GenerationCall>& call);
  void SubmitChecked(CheckedRequest checked, Arrived arrived, std::optional<double> timeout_s,
                     const std::shared_ptr<GenerationCall>& call);
  absl::StatusOr<QueueShare::Place> TakeShare(const std::string& client);

  const Health& health_;
  Metrics& metrics_;
  const double max_queue_share_;
  const bool reuse_by_token_;
  const int tokenizer_threads_;
  QueueShare queue_share_;
  NumberedNames reuse_scopes_;
  NameLog ignored_names_;
  std::atomic<int> request_timeout_s_;
  std::atomic<int> max_queue_size_;
  std::atomic<uint64_t> next_id_ = 1;
  std::unique_ptr<const ServingParts> parts_;          // written once, by Open
  std::atomic<const ServingParts*> opened_ = nullptr;  // parts_ once written

  mutable std::mutex calls_mutex_;
  mutable std::condition_variable calls_changed_;
  int open_calls_ = 0;  // guarded by calls_mutex_

  TurnPool pool_;  // last: its threads use the members above
};

}  // namespace foredraft
