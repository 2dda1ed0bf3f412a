#pragma once

// Answers of OpenAI's Responses API: whole, as events of a stream, and errors. No sockets.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "server/api/fields/json_string_reader.h"
#include "server/api/http/answer_blocks.h"
#include "server/api/http/answer_format.h"
#include "server/api/http/client_error.h"
#include "server/api/responses/response_tools.h"

namespace foredraft {

// What a request says of the form of its answer.
struct ResponseShape {
  bool stream = false;
  bool hides_thinking = false;
  FieldNames names = {NotedWire::kResponses, "max_output_tokens"};
  SentTools sent_tools = {};
  std::map<std::string, std::string> repeated = {};  // JSON texts, by field
};

class ResponsesFormat final : public AnswerFormat, private BlockListener {
 public:
  explicit ResponsesFormat(ResponseShape shape = {})
      : shape_(std::move(shape)), blocks_(shape_.hides_thinking) {}

  void Begin(AnswerLabels labels) override { labels_ = std::move(labels); }
  std::string Delta(int index, const OutputDelta& delta, const OutputEnd* end,
                    const ResponseLabels& labels) override;
  std::string KeepAlive() override;
  std::string StreamEnd(const std::vector<ChoiceEnd>& choices) override;
  std::string FailedStream(const absl::Status& status) override;
  std::string Whole(const std::vector<ChoiceEnd>& choices) override;
  HttpAnswer Failed(const absl::Status& status, const std::string& request_id) override;

 private:
  using Json = nlohmann::ordered_json;

  void Opened(size_t index, const AnswerBlock& block) override;
  void Grew(size_t index, const AnswerBlock& block, std::string_view piece) override;
  void Closed(size_t index, const AnswerBlock& block) override;

  // Adds an event, which the next TakeEvents returns.
  void Send(const char* type, const Json& more);
  void SendBegin();
  std::string TakeEvents() { return std::exchange(events_, ""); }

  const SentTool* SentOf(const AnswerBlock& block) const;
  std::string ItemId(size_t index, const AnswerBlock& block) const;
  // A block's item, as complete as the block is so far.
  Json ItemOf(size_t index, const AnswerBlock& block, const char* status) const;
  const char* StatusOf(size_t index, const OutputEnd* end) const;
  // A field of the request, or `absent` if the request does not have it.
  Json Repeated(const char* field, Json absent) const;
  // The response without its output and usage.
  Json Response(const char* status) const;
  Json EndedResponse(const ChoiceEnd& choice) const;
  Json FailedResponse(const absl::Status& status) const;

  const ResponseShape shape_;
  AnswerLabels labels_;
  AnswerBlocks blocks_;
  JsonStringReader custom_input_;   // of the open call, where its tool is custom
  const OutputEnd* end_ = nullptr;  // set while the last delta's blocks are closed
  std::string events_;
  int64_t sequence_number_ = 0;
  bool has_begun_ = false;  // the stream's first events are sent
};

}  // namespace foredraft
