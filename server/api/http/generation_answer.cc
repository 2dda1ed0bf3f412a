#include "server/api/http/generation_answer.h"

#include <optional>
#include <utility>

#include "server/api/http/bearer_token.h"
#include "server/api/request_id.h"
#include "server/output/trace_context.h"

namespace foredraft {
namespace {

// The connection's side of a choice.
class HttpContext final : public CallContext {
 public:
  explicit HttpContext(std::shared_ptr<GenerationAnswer> answer) : answer_(std::move(answer)) {}

  std::string peer() const override { return answer_->exchange().request().peer; }
  std::string authorization() const override { return AuthorizationOf(answer_->exchange().request()); }
  std::optional<std::chrono::system_clock::time_point> deadline() const override { return std::nullopt; }
  std::string traceparent() const override {
    return std::string(answer_->exchange().request().Header(kTraceParentHeader));
  }
  void SetRequestId(const std::string& id) override {
    answer_->SetRequestId(id);
    answer_->CallHasBegun();
  }
  void SetTraceParent(const std::string& header) override { answer_->SetTraceParent(header); }
  void SetIgnored(const FieldNotes& notes) override { answer_->SetIgnored(notes); }
  void Cancel() override { answer_->exchange().Abandon(); }

 private:
  const std::shared_ptr<GenerationAnswer> answer_;
};

class StreamChoice final : public StreamCall {
 public:
  static std::shared_ptr<StreamChoice> Create(std::shared_ptr<GenerationAnswer> answer, int index,
                                              CallHooks hooks, int max_pending_tokens) {
    return Own(std::shared_ptr<StreamChoice>(
        new StreamChoice(std::move(answer), index, std::move(hooks), max_pending_tokens)));
  }

  void Cancel() { CallCancelled(); }
  void Done() { CallDone(); }

 private:
  StreamChoice(std::shared_ptr<GenerationAnswer> answer, int index, CallHooks hooks, int max_pending_tokens)
      : StreamCall(std::make_unique<HttpContext>(answer), std::move(hooks), max_pending_tokens),
        answer_(std::move(answer)),
        index_(index) {}

  void WriteMessage(const OutputDelta& delta, const OutputEnd* end) override {
    if (end != nullptr) ended_ = {.whole = {.stats = delta.stats}, .end = *end, .labels = labels()};
    // `delta` and `end` stay as they are until the message is written. JSON is made on the listener's
    // threads.
    auto alive = std::static_pointer_cast<StreamChoice>(self());
    if (alive == nullptr) return MessageWritten(false);
    answer_->Write(
        [alive, &delta, end] {
          return alive->answer_->format().Delta(alive->index_, delta, end, alive->labels());
        },
        [alive](bool ok) { alive->MessageWritten(ok); });
  }
  void FinishStream(const absl::Status& status) override {
    ended_.end.status = status;
    answer_->ChoiceEnded(index_, std::move(ended_));
  }
  bool HasLastMessage(const OutputEnd& end) const override { return end.status.ok(); }

  const std::shared_ptr<GenerationAnswer> answer_;
  const int index_;
  // Owned by the write that is outstanding, else by the thread that starts the next one.
  ChoiceEnd ended_;
};

class WholeChoice final : public GenerationCall {
 public:
  static std::shared_ptr<WholeChoice> Create(std::shared_ptr<GenerationAnswer> answer, int index,
                                             CallHooks hooks) {
    return Own(std::shared_ptr<WholeChoice>(new WholeChoice(std::move(answer), index, std::move(hooks))));
  }

  bool Push(OutputDelta delta) override {
    std::lock_guard<std::mutex> lock(mutex_);
    whole_.Append(std::move(delta));
    return true;
  }
  void End(OutputDelta delta, OutputEnd end) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (ended_) return;
      ended_ = true;
      whole_.Append(std::move(delta));
    }
    answer_->ChoiceEnded(index_, {.whole = std::move(whole_), .end = std::move(end), .labels = labels()});
  }

  void Cancel() { CallCancelled(); }
  void Done() { CallDone(); }

 private:
  WholeChoice(std::shared_ptr<GenerationAnswer> answer, int index, CallHooks hooks)
      : GenerationCall(std::make_unique<HttpContext>(answer), std::move(hooks)),
        answer_(std::move(answer)),
        index_(index) {}

  const std::shared_ptr<GenerationAnswer> answer_;
  const int index_;
  OutputDelta whole_;   // guarded by mutex_ until ended_
  bool ended_ = false;  // guarded by mutex_
};

}  // namespace

GenerationAnswer::GenerationAnswer(std::shared_ptr<HttpExchange> exchange,
                                   std::unique_ptr<AnswerFormat> format, const WireRequest& request)
    : exchange_(std::move(exchange)),
      format_(std::move(format)),
      stream_(request.stream),
      choices_(static_cast<size_t>(request.choice_count())) {}

std::shared_ptr<GenerationCall> GenerationAnswer::AddChoice(CallHooks hooks, int max_pending_tokens) {
  const auto add = [this](const auto& choice) {
    std::lock_guard<std::mutex> lock(mutex_);
    handles_.push_back({[choice] { choice->Cancel(); }, [choice] { choice->Done(); }});
    return choice;
  };
  const int index = static_cast<int>(handles_.size());  // AddChoice is called by one thread
  if (stream_)
    return add(StreamChoice::Create(shared_from_this(), index, std::move(hooks), max_pending_tokens));
  return add(WholeChoice::Create(shared_from_this(), index, std::move(hooks)));
}

bool GenerationAnswer::has_failed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return has_failed_;
}

void GenerationAnswer::AllSubmitted() {
  exchange_->OnEnd([self = shared_from_this()](bool complete) {
    std::vector<Handle> handles;
    bool unwanted = !complete;
    {
      std::lock_guard<std::mutex> lock(self->mutex_);
      handles = std::move(self->handles_);
      self->handles_.clear();
      unwanted |= self->has_failed_;  // a choice that was added while another one failed
    }
    for (const Handle& handle : handles) {
      if (unwanted) handle.cancel();
      handle.done();
    }
  });
}

void GenerationAnswer::SetRequestId(const std::string& id) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (request_id_.empty()) request_id_ = id;
}

void GenerationAnswer::SetTraceParent(const std::string& header) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (traceparent_.empty()) traceparent_ = header;
}

void GenerationAnswer::SetIgnored(const FieldNotes& notes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (notes.count() > ignored_.count()) ignored_ = notes;
}

HttpHeaders GenerationAnswer::Headers() const {
  HttpHeaders headers = {{kRequestIdMetadata, request_id_}};
  if (!traceparent_.empty()) headers.emplace_back(kTraceParentHeader, traceparent_);
  if (!ignored_.empty()) headers.emplace_back(kIgnoredHeader, ignored_.Header());
  for (auto& header : format_->Headers(request_id_)) headers.push_back(std::move(header));
  return headers;
}

void GenerationAnswer::CallHasBegun() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool all_have = ++begun_count_ == static_cast<int>(choices_.size());
    if (!all_have || !stream_) return;
  }
  exchange_->WhenSilent([self = shared_from_this()] { self->BreakSilence(); });
}

void GenerationAnswer::BreakSilence() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (has_failed_ || ended_count_ == static_cast<int>(choices_.size())) return;
    BeginStream();
  }
  exchange_->Write([self = shared_from_this()] { return self->format_->KeepAlive(); }, [](bool) {});
}

void GenerationAnswer::BeginStream() {
  if (has_begun_) return;
  has_begun_ = true;
  exchange_->StartStream({.content_type = "text/event-stream", .headers = Headers()});
}

void GenerationAnswer::Write(std::function<std::string()> make, std::function<void(bool ok)> written) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!has_failed_) BeginStream();
  }
  exchange_->Write(std::move(make), std::move(written));
}

void GenerationAnswer::ChoiceEnded(int index, ChoiceEnd ended) {
  bool is_last = false;
  bool has_begun = false;
  absl::Status failed;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (has_failed_) return;
    choices_[index] = std::move(ended);
    failed = choices_[index].end.status;
    has_failed_ = !failed.ok();
    is_last = ++ended_count_ == static_cast<int>(choices_.size());
    has_begun = has_begun_;
  }
  if (!failed.ok()) {
    EndWithError(failed, has_begun);
  } else if (is_last) {
    stream_ ? SendStreamEnd() : SendWhole();
  }
}

HttpAnswer GenerationAnswer::WithHeaders(HttpAnswer answer) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& header : Headers()) answer.headers.push_back(std::move(header));
  return answer;
}

void GenerationAnswer::SendWhole() {
  exchange_->Answer([self = shared_from_this()] {
    return self->WithHeaders(
        {.body = self->format_->Whole(self->choices_), .content_type = "application/json"});
  });
}

void GenerationAnswer::SendBody(std::string body) {
  exchange_->Answer([self = shared_from_this(), body = std::move(body)] {
    return self->WithHeaders({.body = body, .content_type = "application/json"});
  });
}

void GenerationAnswer::SendStreamEnd() {
  exchange_->Finish([self = shared_from_this()] { return self->format_->StreamEnd(self->choices_); });
}

void GenerationAnswer::SendError(const absl::Status& status) {
  exchange_->Answer([self = shared_from_this(), status] {
    std::string request_id;
    {
      std::lock_guard<std::mutex> lock(self->mutex_);
      request_id = self->request_id_;
    }
    return self->WithHeaders(self->format_->Failed(status, request_id));
  });
}

void GenerationAnswer::EndWithError(const absl::Status& status, bool has_begun) {
  if (has_begun) {
    exchange_->Finish([self = shared_from_this(), status] { return self->format_->FailedStream(status); });
  } else {
    SendError(status);
  }
  std::vector<Handle> others;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    others = handles_;
  }
  for (const Handle& other : others) other.cancel();  // no effect on calls that have ended
}

}  // namespace foredraft
