#pragma once

// The paths of OpenAI's chat and completions.

#include <memory>
#include <string>

#include "server/api/http/http_wire.h"
#include "server/api/openai/openai_request.h"

namespace foredraft {

// `request` is null if it could not be read.
std::unique_ptr<AnswerFormat> MakeOpenAiFormat(OpenAiKind kind, const OpenAiRequest* request);

class OpenAiWire final : public HttpWire {
 public:
  explicit OpenAiWire(OpenAiKind kind) : kind_(kind) {}

  const char* path() const override;
  NotedWire noted() const override { return WireOf(kind_); }
  absl::StatusOr<ReadResult> Read(std::string_view body, const ReadOptions& options) const override;
  std::unique_ptr<AnswerFormat> ErrorFormat() const override;
  HttpAnswer Refusal(int status, const std::string& text) const override;

 private:
  const OpenAiKind kind_;
};

}  // namespace foredraft
