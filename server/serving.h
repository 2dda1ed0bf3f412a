#pragma once

// What serves one model once it is ready: tokenizer and chat format, the validator and compiler of requests,
// the output thread, and the serving loop over the executors. Uses executors through their interface only.
//
// Life: Start, Stop. Start, CheckRanks, Resume, GiveUp and Stop are called by the owner's thread; the rest by
// any thread, before Start too.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "config/config.h"
#include "scheduler/serving_loop.h"
#include "server/api/admission.h"
#include "server/api/model_card.h"
#include "server/api/request_validator.h"
#include "server/constraints/constraint_compiler.h"
#include "server/frontend_options.h"
#include "server/output/metrics.h"
#include "server/output/output_thread.h"

namespace foredraft {

// A model that is ready to serve. The executors outlive what serves it.
struct ServedModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string chat_format;  // of a tokenizer without a template: ModelKind::chat_format
  RequestLimits limits;
  SchedulerOptions scheduler;
  ServingLoopOptions loop;
  std::vector<Executor*> executors;
  ModelCard card;
};

class Serving {
 public:
  // Options and metrics outlive this object.
  Serving(const FrontendOptions& options, Metrics& metrics) : options_(options), metrics_(metrics) {}

  // Called once. Returns the parts to which an Admission passes requests.
  ServingParts Start(ServedModel model);
  // Ends the requests in flight with `error`.
  void EndAll(const absl::Status& error);
  void Stop();

  // Not ok once a rank was lost; `first`: this call is the first one that sees it.
  struct Loss {
    absl::Status status;
    bool first = false;
  };
  Loss CheckRanks();
  // Reports the loss of a rank, which the loop itself notices only while an iteration is in flight.
  void ReportLoss(const absl::Status& error) { loop_->ReportLoss(error); }
  // After a loss: serves again on the same executors.
  void Resume();
  // After a loss: the requests that wait for Resume end with `error`.
  void GiveUp(const absl::Status& error) { loop_->GiveUp(error); }

  // `speculation` applies from the next iteration on, `thinking` to requests that arrive from now on.
  void SetSpeculation(const Speculation& speculation, const ThinkingIds& thinking);
  void SetMaxQueueSize(int max_queue_size);
  // Applies to requests that arrive from now on. Where the options had no constraints, there are none.
  void SetConstraints(const std::optional<ConstraintsConfig>& constraints);

  SchedulerLoad load() const;
  // When the slower of the loop and the output thread began its last turn; none before Start.
  std::optional<SteadyTime> last_turn() const;

 private:
  void StartConstraints(const RequestLimits& limits, bool forced);

  const FrontendOptions& options_;
  Metrics& metrics_;
  // Set from Start on.
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatFormat> chat_format_;
  std::unique_ptr<ConstraintCompiler> constraints_;
  std::unique_ptr<RequestValidator> validator_;
  std::unique_ptr<OutputThread> output_;
  std::unique_ptr<ServingLoop> loop_;
  std::atomic<ServingLoop*> started_ = nullptr;  // loop_, once everything is started, for other threads
  bool rank_lost_ = false;                       // owner's thread
};

}  // namespace foredraft
