#pragma once

// vLLM's pages of tokens: a prompt or a chat as token ids, and token ids as text. Nothing is generated.

#include "server/api/openai/openai_wire.h"

namespace foredraft {

// POST /tokenize takes the body of a chat or of a completion with one text; the ids are those of its prompt.
class TokenizePage final : public HttpWire {
 public:
  const char* path() const override { return "/tokenize"; }
  NotedWire noted() const override { return NotedWire::kOther; }
  absl::StatusOr<ReadResult> Read(std::string_view body, const ReadOptions& options) const override;
  std::unique_ptr<AnswerFormat> ErrorFormat() const override;
  HttpAnswer Refusal(int status, const std::string& text) const override;
};

// POST /detokenize
class DetokenizePage final : public HttpWire {
 public:
  const char* path() const override { return "/detokenize"; }
  NotedWire noted() const override { return NotedWire::kOther; }
  absl::StatusOr<ReadResult> Read(std::string_view body, const ReadOptions& options) const override;
  std::unique_ptr<AnswerFormat> ErrorFormat() const override;
  HttpAnswer Refusal(int status, const std::string& text) const override;
};

}  // namespace foredraft
