#pragma once

// The part of a call's connection that all wires have.

#include <chrono>
#include <optional>
#include <string>

#include "server/text/field_notes.h"

namespace foredraft {

class CallContext {
 public:
  virtual ~CallContext() = default;

  // The client's address: "ipv4:10.0.0.7:51234".
  virtual std::string peer() const = 0;
  // The server's name for the connection; empty if it has none.
  virtual std::string connection() const { return ""; }
  // What Access::Check takes of the caller, "Bearer ..."; empty without a token.
  virtual std::string authorization() const = 0;
  // The header that names the client's trace (trace_context.h); empty without one.
  virtual std::string traceparent() const = 0;
  // When the client itself gives up, if it says so.
  virtual std::optional<std::chrono::system_clock::time_point> deadline() const = 0;
  // Sets the id that the answer carries. Called before the answer begins.
  virtual void SetRequestId(const std::string& id) = 0;
  // Sets the request's place in its client's trace, which the answer carries, too. Called before the answer
  // begins.
  virtual void SetTraceParent(const std::string& header) = 0;
  // Sets the fields of the request without effect, which the answer names. Called before the answer begins.
  virtual void SetIgnored(const FieldNotes& notes) = 0;
  // Ends the call of a client that does not read. Valid until the call is done.
  virtual void Cancel() = 0;
};

}  // namespace foredraft
