#pragma once

// OpenAI's Responses API: its answers, and the count of a request's tokens.

#include "server/api/http/http_wire.h"

namespace foredraft {

class ResponsesWire final : public HttpWire {
 public:
  enum class Path { kResponses, kInputTokens };
  explicit ResponsesWire(Path path) : path_(path) {}

  const char* path() const override;
  NotedWire noted() const override { return NotedWire::kResponses; }
  absl::StatusOr<ReadResult> Read(std::string_view body, const ReadOptions& options) const override;
  std::unique_ptr<AnswerFormat> ErrorFormat() const override;
  HttpAnswer Refusal(int status, const std::string& text) const override;

 private:
  const Path path_;
};

}  // namespace foredraft
