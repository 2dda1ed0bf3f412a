#include "server/serving.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace foredraft {

ServingParts Serving::Start(ServedModel model) {
  CHECK(loop_ == nullptr) << "Start was called twice";
  tokenizer_ = std::move(model.tokenizer);
  std::string no_chat;
  if (absl::StatusOr<ChatFormat> format = ChatFormat::Create(*tokenizer_, model.chat_format); format.ok()) {
    chat_format_ = *std::move(format);
  } else {
    no_chat = std::string(format.status().message());
    Log(LogLevel::kInfo, "chat requests are refused: %s", no_chat);
  }
  const bool forced = model.scheduler.acceptance.forced_length > 0;
  StartConstraints(model.limits, forced);
  validator_ = std::make_unique<RequestValidator>(std::move(model.limits), *tokenizer_,
                                                  chat_format_.has_value() ? &*chat_format_ : nullptr,
                                                  no_chat, constraints_.get());
  validator_->SetForced(forced);
  output_ = std::make_unique<OutputThread>(
      options_.output, metrics_, [this](uint64_t id, FinishReason reason) { loop_->Cancel(id, reason); });
  loop_ = std::make_unique<ServingLoop>(
      model.loop, std::make_unique<Scheduler>(model.scheduler), std::move(model.executors),
      [this](std::vector<RequestUpdate> updates) { output_->Deliver(std::move(updates)); },
      [this](const IterationStats& stats) { metrics_.RecordIteration(stats); });
  loop_->Start();
  started_.store(loop_.get());
  metrics_.ReadLoadFrom([this] { return load(); });
  metrics_.SetForced(forced);
  return {.tokenizer = tokenizer_.get(),
          .validator = validator_.get(),
          .loop = loop_.get(),
          .output = output_.get(),
          .model = std::move(model.card)};
}

void Serving::StartConstraints(const RequestLimits& limits, bool forced) {
  std::shared_ptr<const Vocabulary> vocabulary;
  if (options_.constraints) {
    auto made = MakeVocabulary(*tokenizer_, limits.vocab_size, limits.eos_ids);
    if (made.ok()) {
      vocabulary = *std::move(made);
    } else {
      Log(LogLevel::kWarning, "structured output is refused: %s", made.status().message());
    }
  }
  constraints_ = std::make_unique<ConstraintCompiler>(std::move(vocabulary), options_.constraints, metrics_);
  constraints_->SetForced(forced);
  metrics_.ReadConstraintsFrom([this] { return constraints_->counts(); });
}

SchedulerLoad Serving::load() const {
  const ServingLoop* loop = started_.load();
  return loop == nullptr ? SchedulerLoad{} : loop->load();
}

std::optional<SteadyTime> Serving::last_turn() const {
  const ServingLoop* loop = started_.load();
  if (loop == nullptr) return std::nullopt;
  return std::min(loop->last_turn(), output_->last_turn());
}

Serving::Loss Serving::CheckRanks() {
  const ServingLoop* loop = started_.load();
  const absl::Status status = loop == nullptr ? absl::OkStatus() : loop->health();
  const bool first = !status.ok() && !rank_lost_;
  rank_lost_ |= first;
  return {.status = status, .first = first};
}

void Serving::Resume() {
  loop_->Restart();
  rank_lost_ = false;
}

void Serving::SetSpeculation(const Speculation& speculation, const ThinkingIds& thinking) {
  metrics_.SetForced(speculation.acceptance.forced_length > 0);
  ServingLoop* const loop = started_.load();
  if (loop == nullptr) return;  // loading: the daemon calls this again afterwards
  loop->SetSpeculation(speculation);
  const bool forced = speculation.acceptance.forced_length > 0;
  validator_->SetThinking(thinking);
  validator_->SetForced(forced);
  constraints_->SetForced(forced);
}

void Serving::SetConstraints(const std::optional<ConstraintsConfig>& constraints) {
  if (started_.load() == nullptr) return;  // loading: the daemon calls this again afterwards
  constraints_->SetConfig(constraints);
}

void Serving::SetMaxQueueSize(int max_queue_size) {
  if (ServingLoop* loop = started_.load(); loop != nullptr) loop->SetMaxQueueSize(max_queue_size);
}

void Serving::EndAll(const absl::Status& error) {
  if (output_ != nullptr) output_->EndAll(error);
}

void Serving::Stop() {
  if (loop_ != nullptr) loop_->Stop();
  if (output_ != nullptr) output_->Stop();
}

}  // namespace foredraft
