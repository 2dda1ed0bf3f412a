#include "server/text/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

// DeepSeek's regexes match in linear time; these limits bound any other regex.
constexpr uint32_t kMatchLimit = 100'000'000;  // backtracking steps per match
constexpr uint32_t kHeapLimitKib = 64 * 1024;
constexpr size_t kJitStackBytes = size_t{8} << 20;

PCRE2_SPTR Subject(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string ErrorText(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct RegexScratch::Buffers {
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* jit_stack = nullptr;  // for a match that needs more than 32 KiB of the thread's stack

  Buffers() {
    if (!complete()) return;
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
  }
  ~Buffers() {
    pcre2_jit_stack_free(jit_stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
  }
  bool complete() const { return match != nullptr && context != nullptr; }  // else memory was short
  // False: it was there before, or memory is short. It asks for 8 MiB, so only matches that need it pay for
  // it.
  bool TakeJitStack() {
    if (jit_stack != nullptr) return false;
    jit_stack = pcre2_jit_stack_create(64 * 1024, kJitStackBytes, nullptr);
    pcre2_jit_stack_assign(context, nullptr, jit_stack);
    return jit_stack != nullptr;
  }
};

RegexScratch::RegexScratch() : buffers_(std::make_unique<Buffers>()) {}
RegexScratch::~RegexScratch() = default;

void SplitRegex::FreeCode::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

absl::StatusOr<SplitRegex> SplitRegex::Compile(std::string_view pattern) {
  ASSIGN_OR_RETURN(const std::string translated, TranslateOniguruma(pattern));
  return CompileTranslated(translated, PCRE2_UTF | PCRE2_UCP);
}

absl::StatusOr<SplitRegex> SplitRegex::CompileLiteral(std::string_view text) {
  if (text.empty()) return absl::InvalidArgumentError("empty, allowed at least 1 character");
  return CompileTranslated(text, PCRE2_UTF | PCRE2_LITERAL);
}

absl::StatusOr<SplitRegex> SplitRegex::CompileTranslated(std::string_view pattern, uint32_t options) {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  CHECK(context != nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);  // as in Oniguruma, '.' stops at \n alone
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(Subject(pattern), pattern.size(), options, &error, &offset, context));
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\": %s at byte %d", pattern, ErrorText(error), offset));
  }
  uint32_t match_empty = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &match_empty);
  if (match_empty != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\": matches the empty text, allowed only matches of at least 1 character", pattern));
  }
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without JIT the interpreter gives the same matches
  return SplitRegex(std::move(code));
}

absl::Status SplitRegex::Split(std::string_view text, RegexScratch& scratch,
                               std::vector<std::string_view>& pieces) const {
  RegexScratch::Buffers& buffers = *scratch.buffers_;
  if (!buffers.complete()) return absl::ResourceExhaustedError("the tokenizer's regex: out of memory");
  size_t done = 0;
  while (done < text.size()) {
    const int found = pcre2_match(code_.get(), Subject(text), text.size(), done, PCRE2_NO_UTF_CHECK,
                                  buffers.match, buffers.context);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && buffers.TakeJitStack()) continue;
    if (found == PCRE2_ERROR_NOMEMORY) {
      return absl::ResourceExhaustedError("the tokenizer's regex: out of memory");
    }
    if (found < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the tokenizer's regex fails after byte %d: %s", done, ErrorText(found)));
    }
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(buffers.match);
    CHECK(span[0] >= done && span[1] > span[0]);
    if (span[0] > done) pieces.push_back(text.substr(done, span[0] - done));
    pieces.push_back(text.substr(span[0], span[1] - span[0]));
    done = span[1];
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
  return absl::OkStatus();
}

}  // namespace foredraft
