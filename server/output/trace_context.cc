#include "server/output/trace_context.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace foredraft {
namespace {

constexpr size_t kSize = 55;  // "00-" trace "-" parent "-" flags

bool IsHex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

std::string RandomSpanId() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  uint64_t id = 0;
  while (id == 0) id = generator();
  return absl::StrFormat("%016x", id);
}

}  // namespace

std::string TraceContext::Header() const {
  return absl::StrCat("00-", trace_id, "-", span_id, sampled ? "-01" : "-00");
}

std::optional<TraceContext> ReadTraceParent(std::string_view header) {
  if (header.size() < kSize) return std::nullopt;
  const std::string_view version = header.substr(0, 2), trace = header.substr(3, 32),
                         parent = header.substr(36, 16), flags = header.substr(53, 2);
  if (header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  if (!IsHex(version) || !IsHex(trace) || !IsHex(parent) || !IsHex(flags)) return std::nullopt;
  if (version == "ff" || IsZero(trace) || IsZero(parent)) return std::nullopt;
  const bool ends_here = header.size() == kSize;
  if (version == "00" ? !ends_here : !ends_here && header[kSize] != '-') return std::nullopt;
  return TraceContext{.trace_id = std::string(trace),
                      .parent_id = std::string(parent),
                      .span_id = RandomSpanId(),
                      .sampled = std::string_view("13579bdf").find(flags[1]) != std::string_view::npos};
}

}  // namespace foredraft
