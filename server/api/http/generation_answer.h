#pragma once

// The answer to one request over HTTP. Each of its choices is a request of its own in the daemon, with a call
// (generation_call.h) that ends by itself; the answer joins the calls on one exchange. If one fails, the
// answer fails and the others are cancelled. Thread-safe.
//
// Nothing is sent before the first token, so that an earlier error is still an HTTP status; a later one is an
// event of the stream. A silent stream begins without a token, but only once all of its calls are submitted
// or refused: refusals keep their status.

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/api/admission.h"
#include "server/api/http/answer_format.h"
#include "server/api/http/wire_request.h"
#include "server/http/http_service.h"

namespace foredraft {

class GenerationAnswer : public std::enable_shared_from_this<GenerationAnswer> {
 public:
  GenerationAnswer(std::shared_ptr<HttpExchange> exchange, std::unique_ptr<AnswerFormat> format,
                   const WireRequest& request);

  // Makes the call of the next choice, which the answer holds until AllSubmitted was called and the exchange
  // has ended.
  std::shared_ptr<GenerationCall> AddChoice(CallHooks hooks, int max_pending_tokens);
  // True once a choice has failed: further choices need not be submitted.
  bool has_failed() const;
  // After the last AddChoice: from now on a lost connection cancels the calls.
  void AllSubmitted();

  // Called by the choices' calls. The first id, and the first place in a trace, become the answer's.
  void SetRequestId(const std::string& id);
  // Called by each call when it is submitted or refused.
  void CallHasBegun();
  void SetTraceParent(const std::string& header);
  // Sets the fields without effect. Each call's notes include those from before the calls began.
  void SetIgnored(const FieldNotes& notes);
  void Write(std::function<std::string()> make, std::function<void(bool ok)> written);
  void ChoiceEnded(int index, ChoiceEnd ended);
  // Answers without a choice: with a body, or with an error.
  void SendBody(std::string body);
  void SendError(const absl::Status& status);
  // The answer's form, for the function that Write is given.
  AnswerFormat& format() { return *format_; }
  HttpExchange& exchange() { return *exchange_; }

 private:
  // How the answer reaches a call.
  struct Handle {
    std::function<void()> cancel;
    std::function<void()> done;
  };

  void BreakSilence();
  // The caller holds mutex_.
  void BeginStream();
  void SendWhole();
  void SendStreamEnd();
  void EndWithError(const absl::Status& status, bool has_begun);
  HttpHeaders Headers() const;  // the caller holds mutex_
  HttpAnswer WithHeaders(HttpAnswer answer) const;

  const std::shared_ptr<HttpExchange> exchange_;
  const std::unique_ptr<AnswerFormat> format_;  // called by functions that the exchange runs in their order
  const bool stream_;
  mutable std::mutex mutex_;
  std::string request_id_;          // guarded by mutex_
  std::string traceparent_;         // guarded by mutex_; empty: the client names no trace
  FieldNotes ignored_;              // guarded by mutex_
  std::vector<Handle> handles_;     // guarded by mutex_
  std::vector<ChoiceEnd> choices_;  // guarded by mutex_; constant once all have ended
  int begun_count_ = 0;             // guarded by mutex_; calls that were submitted or refused
  int ended_count_ = 0;             // guarded by mutex_
  bool has_begun_ = false;          // guarded by mutex_; a part of the stream is sent
  bool has_failed_ = false;         // guarded by mutex_
};

}  // namespace foredraft
