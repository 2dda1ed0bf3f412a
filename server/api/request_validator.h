#ifndef FOREDRAFT_SERVER_API_REQUEST_VALIDATOR_H_
#define FOREDRAFT_SERVER_API_REQUEST_VALIDATOR_H_

// From what a client sent to what the scheduler takes: every bad field is refused by name, value and limit
// (INVALID_ARGUMENT). Lengths are checked before anything looks at contents. Any thread.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/model_config.h"
#include "foredraft/v1/generation.pb.h"
#include "scheduler/request.h"
#include "scheduler/request_size.h"
#include "server/output/output_stream.h"
#include "server/text/chat_format.h"
#include "server/text/tokenizer.h"

namespace foredraft {

inline constexpr int kMaxRequestIdBytes = 128;
inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxStopBytes = 256;
inline constexpr int kMaxChatMessages = 1024;
inline constexpr int kMaxTokenizeBytes = 4 << 20;

// What the loaded model and the configuration allow.
struct RequestLimits {
  int vocab_size = 0;
  RequestSizeLimits size;
  int longest_token_bytes = 1;
  std::vector<int32_t> eos_ids;
  GenerationConfig defaults;
  ThinkingIds thinking;  // to start with
};

struct CheckedRequest {
  Request request;       // id, arrival and deadline are the caller's to set
  OutputSpec spec;       // likewise
  double timeout_s = 0;  // 0 = the client named none
};

class RequestValidator {
 public:
  // Tokenizer and chat format outlive the validator; no chat format: chat is refused.
  RequestValidator(RequestLimits limits, const Tokenizer& tokenizer, const ChatFormat* chat_format)
      : limits_(std::move(limits)),
        tokenizer_(tokenizer),
        chat_format_(chat_format),
        thinking_(limits_.thinking) {}

  // For requests checked from now on; any thread.
  void SetThinking(const ThinkingIds& thinking) { thinking_.store(thinking); }
  ThinkingIds thinking() const { return thinking_.load(); }

  absl::StatusOr<CheckedRequest> Check(const v1::GenerateRequest& wire) const;
  absl::StatusOr<std::vector<int32_t>> CheckTokenize(const v1::TokenizeRequest& wire) const;
  absl::StatusOr<std::string> CheckDetokenize(const v1::DetokenizeRequest& wire) const;

  const RequestLimits& limits() const { return limits_; }

 private:
  absl::Status CheckLengths(const v1::GenerateRequest& wire) const;
  absl::StatusOr<std::vector<int32_t>> PromptIds(const v1::GenerateRequest& wire) const;
  absl::StatusOr<std::vector<int32_t>> ChatIds(const v1::Chat& chat) const;
  absl::StatusOr<std::vector<int32_t>> EncodeText(const std::string& text,
                                                  const EncodeOptions& options) const;
  absl::Status CheckIds(const char* field, const google::protobuf::RepeatedField<int32_t>& ids) const;
  absl::StatusOr<SamplingParams> Sampling(const v1::SamplingParams& wire) const;
  absl::StatusOr<int64_t> MaxTokens(const v1::GenerateRequest& wire, int64_t prompt_len) const;

  const RequestLimits limits_;
  const Tokenizer& tokenizer_;
  const ChatFormat* const chat_format_;
  std::atomic<ThinkingIds> thinking_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_API_REQUEST_VALIDATOR_H_
