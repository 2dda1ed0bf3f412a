#pragma once

// W3C Trace Context: the trace that a client's call belongs to, by its header `traceparent`
// (https://www.w3.org/TR/trace-context/, version 00). The daemon records no spans of its own; it says in its
// log and its answers which trace a request belongs to, so that they are found by the trace's id.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace foredraft {

// The header's name, in HTTP and in gRPC's metadata.
inline constexpr char kTraceParentHeader[] = "traceparent";

// A request's place in a trace. A value.
struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits
  std::string parent_id;  // 16: the client's span
  std::string span_id;    // 16: the request's own, drawn at random
  bool sampled = false;   // the client records this trace

  // The value that an answer carries: the trace, and the request's span.
  std::string Header() const;
};

// The request's place below the span that `header` names. Nothing where the header is absent or malformed: a
// receiver then acts as without one (section 3.2.2 of the recommendation). Later versions are read as far as
// version 00 goes.
std::optional<TraceContext> ReadTraceParent(std::string_view header);

}  // namespace foredraft
