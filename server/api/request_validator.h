#pragma once

// Checks a client's request and turns it into the scheduler's: a bad field is refused with its name, its
// value and what is allowed (INVALID_ARGUMENT). Lengths are checked before contents. Thread-safe.

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/request.h"
#include "scheduler/request_size.h"
#include "server/api/client_request.h"
#include "server/constraints/constraint_compiler.h"
#include "server/output/output_stream.h"
#include "server/text/chat_format.h"
#include "server/text/tokenizer.h"

namespace foredraft {

inline constexpr int kMaxRequestIdBytes = 128;
inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxStopBytes = 256;
inline constexpr int kMaxChatMessages = 1024;  // or as many as the context has tokens, if that is more
inline constexpr int kMaxTokenizeBytes = 4 << 20;

// What the loaded model and the configuration allow.
struct RequestLimits {
  int vocab_size = 0;
  int token_count = 0;                  // ids below it may be chosen; 0: the whole vocabulary
  std::vector<int32_t> missing_tokens;  // ids below token_count that the tokenizer lacks, ascending
  RequestSizeLimits size;
  int longest_token_bytes = 1;
  int max_detokenize_ids = 1 << 17;
  std::vector<int32_t> eos_ids;
  SamplingParams default_sampling;     // for fields that a request leaves out; its seed is not used
  ThinkingIds thinking;                // in force until SetThinking
  std::vector<int32_t> wind_down_ids;  // of thinking.wind_down: fewer than kMaxThoughtEndIds
};

// The caller sets id, arrival and deadline of both, and the spec's request_id.
struct CheckedRequest {
  Request request;
  OutputSpec spec;
};

class RequestValidator {
 public:
  // All arguments outlive the validator. Without a chat format (null), chat is refused for the reason
  // `no_chat`; without a compiler, a request that constrains its output is refused (CheckConstraint).
  RequestValidator(RequestLimits limits, const Tokenizer& tokenizer, const ChatFormat* chat_format,
                   std::string no_chat = "", ConstraintCompiler* constraints = nullptr)
      : limits_(std::move(limits)),
        tokenizer_(tokenizer),
        chat_format_(chat_format),
        no_chat_(std::move(no_chat)),
        constraints_(constraints),
        thinking_(limits_.thinking) {}

  // Sets the ids of thinking for requests checked from now on.
  void SetThinking(const ThinkingIds& thinking) { thinking_.store(thinking); }
  ThinkingIds thinking() const { return thinking_.load(); }
  // Sets whether acceptance is forced for requests checked from now on: tokens are then not the model's, and
  // no thinking budget is kept.
  void SetForced(bool forced) { forced_.store(forced); }

  // Compiles the request's constraint, which may take up to a second (IsConstrained). `notes`, where set,
  // gets the fields without effect, also of a refused request.
  absl::StatusOr<CheckedRequest> Check(ClientRequest client, FieldNotes* notes = nullptr) const;
  // The checks that Check makes first: the lengths of all fields except the prompt, and a prompt's length.
  absl::Status CheckLengths(const ClientRequest& client) const;
  absl::Status CheckPromptLength(const PromptInput& input, const ChatTools& tools) const;
  // Turns text or chat into token ids; `options` is for text, `choices` and `tools` for chat.
  absl::StatusOr<std::vector<int32_t>> Tokenize(const PromptInput& input, const EncodeOptions& options,
                                                const ChatChoices& choices = {},
                                                const ChatTools& tools = {}) const;
  // The prompt that Check would make of `input`, a text or a chat, with the client's choices and tools; it
  // may be longer than the context.
  absl::StatusOr<std::vector<int32_t>> PromptTokens(const PromptInput& input,
                                                    const ClientRequest& client) const;
  // Whether chat is supported, and with it tools.
  bool has_chat() const { return chat_format_ != nullptr; }
  // Whether outputs can be constrained.
  bool has_constraints() const { return constraints_ != nullptr && constraints_->is_on(); }
  absl::StatusOr<std::string> Detokenize(std::span<const int32_t> token_ids) const;

  const RequestLimits& limits() const { return limits_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  absl::Status FillChoices(ClientRequest& client, Request& request) const;
  // EOS, and for chat the tokens that begin another turn.
  std::vector<int32_t> EndIds(const PromptInput& input) const;
  absl::StatusOr<std::vector<int32_t>> PromptIds(ClientRequest& client, FieldNotes& notes) const;
  absl::StatusOr<std::vector<int32_t>> ChatIds(const ChatMessages& messages, const ChatChoices& choices,
                                               const ChatTools& tools, FieldNotes& notes) const;
  // `ids`, or only the last of them if the request wants its prompt truncated.
  absl::StatusOr<std::vector<int32_t>> Truncated(const ClientRequest& client, std::vector<int32_t> ids) const;
  absl::StatusOr<std::vector<int32_t>> EncodeText(const std::string& text,
                                                  const EncodeOptions& options) const;
  absl::Status CheckIds(const char* field, std::span<const int32_t> ids) const;
  absl::StatusOr<SamplingParams> Sampling(const ClientSampling& client) const;
  // Ascending by token id.
  absl::StatusOr<std::vector<TokenBias>> LogitBias(std::vector<TokenBias> client) const;
  absl::StatusOr<ThinkingBudget> Budget(const ClientRequest& client, const ThinkingIds& thinking) const;
  // The status has the prompt's size (prompt_size.h).
  absl::Status CheckPromptTokens(const char* input_field, int64_t prompt_len) const;
  absl::StatusOr<int64_t> MaxTokens(const ClientRequest& client, const char* input_field, int64_t prompt_len,
                                    FieldNotes& notes) const;

  const RequestLimits limits_;
  const Tokenizer& tokenizer_;
  const ChatFormat* const chat_format_;
  const std::string no_chat_;
  ConstraintCompiler* const constraints_;  // thread-safe
  std::atomic<ThinkingIds> thinking_;
  std::atomic<bool> forced_ = false;
};

}  // namespace foredraft
