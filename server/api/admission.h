#ifndef FOREDRAFT_SERVER_API_ADMISSION_H_
#define FOREDRAFT_SERVER_API_ADMISSION_H_

// Accepts generation requests of every wire into the server: checks that the server serves, validates the
// request, gives it an id and a deadline, opens its stream at the output thread and submits it to the serving
// loop. The request then waits for a decode slot; the scheduler's admission (SlotAdmission in
// scheduler/plan.h) gives it one. Nothing here waits for the engine. Counts the calls that are still open.
// Thread-safe.

#include <grpcpp/server_context.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/serving_loop.h"
#include "server/api/client_request.h"
#include "server/api/generation_call.h"
#include "server/api/health.h"
#include "server/api/model_card.h"
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

class Admission {
 public:
  // Health and metrics outlive the admission.
  Admission(int request_timeout_s, const Health& health, Metrics& metrics)
      : health_(health), metrics_(metrics), request_timeout_s_(request_timeout_s) {}

  // Once, before health enters serving.
  void Open(ServingParts parts);
  // The parts, or UNAVAILABLE while the model is loading.
  absl::StatusOr<const ServingParts*> Parts() const;

  void SetRequestTimeout(int seconds) { request_timeout_s_.store(seconds); }

  // Counts a call as open until its `done` hook.
  CallHooks OpenCall();
  // Submits the call's request, or refuses the call with the reason.
  void Submit(const grpc::CallbackServerContext& context, ClientRequest request,
              std::shared_ptr<GenerationCall> call);
  // Refuses a call whose message its wire cannot read.
  void Refuse(const std::string& request_id, const absl::Status& status,
              const std::shared_ptr<GenerationCall>& call);

  // Calls that gRPC has not finished.
  int open_calls() const;
  // Waits until no call is open. False: the deadline came first.
  bool WaitForNoCalls(SteadyTime deadline) const;

 private:
  absl::Status TrySubmit(const grpc::CallbackServerContext& context, ClientRequest request,
                         const std::string& request_id, const std::shared_ptr<GenerationCall>& call);

  const Health& health_;
  Metrics& metrics_;
  std::atomic<int> request_timeout_s_;
  std::atomic<uint64_t> next_id_ = 1;
  std::unique_ptr<const ServingParts> parts_;          // written once, by Open
  std::atomic<const ServingParts*> opened_ = nullptr;  // parts_ once written

  mutable std::mutex calls_mutex_;
  mutable std::condition_variable calls_changed_;
  int open_calls_ = 0;  // guarded by calls_mutex_
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_API_ADMISSION_H_
