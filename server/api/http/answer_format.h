#pragma once

// The form that a wire over HTTP gives to the answer of one request: bodies, events and errors. No sockets.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/api/generation_call.h"
#include "server/http/http_message.h"
#include "server/output/response_sink.h"
#include "server/text/tokenizer.h"

namespace foredraft {

// A choice that has ended.
struct ChoiceEnd {
  OutputDelta whole;  // of a stream: only its stats
  OutputEnd end;
  ResponseLabels labels;
};

// The values that all parts of an answer repeat.
struct AnswerLabels {
  std::string request_id;  // PrintableId
  std::string model;
  std::string fingerprint;               // the numerics class
  int64_t created = 0;                   // seconds since the epoch
  const Tokenizer* tokenizer = nullptr;  // outlives the answer
};

// Owner: one answer, which calls it on one thread at a time.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;

  // Called once, before every other function except Failed.
  virtual void Begin(AnswerLabels labels) = 0;

  // The events for `delta`, which ends choice `index` if `end` is given; empty if there is nothing to say.
  virtual std::string Delta(int index, const OutputDelta& delta, const OutputEnd* end,
                            const ResponseLabels& labels) = 0;
  // What keeps a silent stream alive, at any time between Begin and the stream's end.
  virtual std::string KeepAlive() { return ": keep-alive\n\n"; }
  // The events after those of the last choice.
  virtual std::string StreamEnd(const std::vector<ChoiceEnd>& choices) = 0;
  // The last events of a stream that ends with an error.
  virtual std::string FailedStream(const absl::Status& status) = 0;

  // The body of a whole answer.
  virtual std::string Whole(const std::vector<ChoiceEnd>& choices) = 0;
  // The answer to a request that fails before anything is sent.
  virtual HttpAnswer Failed(const absl::Status& status, const std::string& request_id) = 0;
  // Headers in addition to those of all wires.
  virtual HttpHeaders Headers(const std::string& /*request_id*/) const { return {}; }
};

}  // namespace foredraft
