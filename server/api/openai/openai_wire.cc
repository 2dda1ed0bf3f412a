#include "server/api/openai/openai_wire.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/api/openai/openai_answer.h"
#include "server/api/openai/openai_error.h"

namespace foredraft {
namespace {

class OpenAiFormat final : public AnswerFormat {
 public:
  OpenAiFormat(OpenAiKind kind, const OpenAiRequest* request) {
    shape_.kind = kind;
    if (request == nullptr) return;
    shape_.has_logprobs = request->common.logprobs.has_value();
    shape_.return_token_ids = request->return_token_ids;
    shape_.include_usage = request->include_usage;
    shape_.continuous_usage = request->continuous_usage;
    shape_.tokens_as_ids = request->tokens_as_ids;
    shape_.hides_thinking = request->hides_thinking;
    shape_.custom_tools = request->custom_tools;
    shape_.max_tokens_field = request->max_tokens_field;
    choices_per_prompt_ = request->choices_per_prompt;
    progress_.resize(static_cast<size_t>(request->choice_count()));
  }

  void Begin(AnswerLabels labels) override {
    shape_.id = absl::StrCat(shape_.kind == OpenAiKind::kChat ? "chatcmpl-" : "cmpl-", labels.request_id);
    shape_.model = std::move(labels.model);
    shape_.fingerprint = std::move(labels.fingerprint);
    shape_.created = labels.created;
    shape_.tokenizer = labels.tokenizer;
  }
  std::string Delta(int index, const OutputDelta& delta, const OutputEnd* end,
                    const ResponseLabels& labels) override {
    return ChunkEvent(shape_, index, delta, end, labels, progress_[static_cast<size_t>(index)]);
  }
  std::string StreamEnd(const std::vector<ChoiceEnd>& choices) override {
    if (!shape_.include_usage) return kDoneEvent;
    std::vector<RequestStats> stats;
    for (const ChoiceEnd& choice : choices) stats.push_back(choice.whole.stats);
    return UsageEvent(shape_, stats, choices_per_prompt_) + kDoneEvent;
  }
  std::string FailedStream(const absl::Status& status) override {
    return ErrorEvent(shape_, status) + kDoneEvent;
  }
  std::string Whole(const std::vector<ChoiceEnd>& choices) override {
    return WholeBody(shape_, choices, choices_per_prompt_);
  }
  HttpAnswer Failed(const absl::Status& status, const std::string& /*request_id*/) override {
    return ErrorAnswer(shape_.names(), status);
  }

 private:
  AnswerShape shape_;
  int choices_per_prompt_ = 1;
  std::vector<ChoiceProgress> progress_;  // by choice
};

}  // namespace

std::unique_ptr<AnswerFormat> MakeOpenAiFormat(OpenAiKind kind, const OpenAiRequest* request) {
  return std::make_unique<OpenAiFormat>(kind, request);
}

const char* OpenAiWire::path() const {
  return kind_ == OpenAiKind::kChat ? "/v1/chat/completions" : "/v1/completions";
}

absl::StatusOr<HttpWire::ReadResult> OpenAiWire::Read(std::string_view body,
                                                      const ReadOptions& options) const {
  ASSIGN_OR_RETURN(OpenAiRequest request, ReadOpenAiRequest(kind_, body, options));
  auto format = MakeOpenAiFormat(kind_, &request);
  return ReadResult{.request = std::move(request), .format = std::move(format)};
}

std::unique_ptr<AnswerFormat> OpenAiWire::ErrorFormat() const { return MakeOpenAiFormat(kind_, nullptr); }

HttpAnswer OpenAiWire::Refusal(int status, const std::string& text) const {
  return ErrorAnswer(status, text);
}

}  // namespace foredraft
