#pragma once

// Answers of Anthropic's Messages API: whole, as events of a stream, and errors. No sockets.

#include <string>
#include <utility>
#include <vector>

#include "server/api/http/answer_blocks.h"
#include "server/api/http/answer_format.h"
#include "server/api/http/client_error.h"

namespace foredraft {

class MessagesFormat final : public AnswerFormat {
 public:
  explicit MessagesFormat(bool hides_thinking = false, FieldNames names = NotedWire::kMessages)
      : blocks_(hides_thinking), names_(std::move(names)) {}

  void Begin(AnswerLabels labels) override;
  std::string Delta(int index, const OutputDelta& delta, const OutputEnd* end,
                    const ResponseLabels& labels) override;
  std::string KeepAlive() override;
  std::string StreamEnd(const std::vector<ChoiceEnd>& choices) override;
  std::string FailedStream(const absl::Status& status) override;
  std::string Whole(const std::vector<ChoiceEnd>& choices) override;
  HttpAnswer Failed(const absl::Status& status, const std::string& request_id) override;
  HttpHeaders Headers(const std::string& request_id) const override;

 private:
  // The stream's first event at the first call; then nothing.
  std::string BeginEvent(const RequestStats& stats);

  std::string id_;
  std::string request_id_;
  std::string model_;
  AnswerBlocks blocks_;
  const FieldNames names_;
  bool has_begun_ = false;  // message_start has been sent
};

// {"type": "error", "error": ...} with one of Anthropic's types for the status.
HttpAnswer MessagesError(int http_status, const std::string& text, const std::string& request_id);

}  // namespace foredraft
