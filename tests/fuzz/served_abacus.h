#pragma once

// What stands between a wire's messages and the scheduler, for abacus: tokenizer, chat format, validator, and
// the output stream behind a pretended engine. No network, no threads. Reads deploy/models/abacus, so the
// working directory is the repository.

#include <memory>
#include <optional>
#include <vector>

#include "server/api/request_validator.h"
#include "server/constraints/constraint_compiler.h"
#include "server/output/metrics.h"
#include "server/output/response_sink.h"
#include "server/text/chat_format.h"
#include "server/text/tokenizer.h"

namespace foredraft {

class ServedAbacus {
 public:
  static constexpr int kMaxSeqLen = 512;

  // What a client would get.
  struct Answer {
    std::vector<OutputDelta> deltas;
    OutputEnd end;
    RequestStats stats;
    OutputDelta whole;  // all deltas
  };

  static ServedAbacus& Get();

  const RequestValidator& validator() const { return *validator_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // A status as clients see it: a code that the validator may give, and one line of text that names a field.
  static void CheckRefusal(const absl::Status& status);
  // Checks what the scheduler and the device rely on, then lets an engine answer that draws its tokens from
  // the request's seed, its prompt and its stop ids, and checks the stream's accounting.
  Answer Play(CheckedRequest checked);

 private:
  ServedAbacus();
  void CheckRequest(const Request& request) const;
  static void CheckConstraint(const Request& request);

  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatFormat> chat_format_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<ConstraintCompiler> constraints_;
  std::unique_ptr<RequestValidator> validator_;
};

}  // namespace foredraft
