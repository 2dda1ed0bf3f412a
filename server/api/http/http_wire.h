#pragma once

// A wire over HTTP: a path that takes POST, the reading of its bodies and the form of its answers. It
// translates, and has no logic of its own. Thread-safe.

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/api/fields/request_body.h"
#include "server/api/http/answer_format.h"
#include "server/api/http/wire_request.h"

namespace foredraft {

class HttpWire {
 public:
  struct ReadResult {
    WireRequest request;
    std::unique_ptr<AnswerFormat> format;
  };

  virtual ~HttpWire() = default;

  virtual const char* path() const = 0;
  virtual NotedWire noted() const = 0;  // the wire's name in metrics and log
  // INVALID_ARGUMENT names the field, its value and what is allowed.
  virtual absl::StatusOr<ReadResult> Read(std::string_view body, const ReadOptions& options) const = 0;
  // The form of the answer to a request that is refused before it is read.
  virtual std::unique_ptr<AnswerFormat> ErrorFormat() const = 0;
  // A refusal with a status of HTTP instead of one of absl's.
  virtual HttpAnswer Refusal(int status, const std::string& text) const = 0;
};

}  // namespace foredraft
