#pragma once

// CHECK is for broken invariants, which are bugs in this code. Errors of users and of the environment are
// absl::Status. A failed CHECK logs one line and aborts, so that wrong tokens are never served. (Debian 12's
// Abseil has no logging.)

#include <sstream>
#include <string>
#include <string_view>

namespace foredraft {

// Logs "CHECK <text>, <file>:<line>" at level error and aborts.
[[noreturn]] void FailCheck(const char* file, int line, const std::string& text);

// Whether FailCheck is ending the process; it has then logged why. For handlers of SIGABRT, where it is safe.
bool CheckHasFailed();

namespace internal {

// Collects what the caller streams into a failed CHECK; its destructor aborts.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, std::string_view what) : file_(file), line_(line) {
    text_ << what;
  }
  [[noreturn]] ~CheckFailure() { FailCheck(file_, line_, text_.str()); }
  std::ostream& stream() { return text_; }

 private:
  const char* file_;
  int line_;
  std::ostringstream text_;
};

template <class A, class B>
std::string ShowOperands(const char* expression, const A& a, const B& b) {
  std::ostringstream text;
  text << expression << ": " << a << " against " << b << " ";
  return text.str();
}

}  // namespace internal
}  // namespace foredraft

#define FOREDRAFT_CHECK_FAILED(what) ::foredraft::internal::CheckFailure(__FILE__, __LINE__, what).stream()

#define CHECK(condition) \
  if (condition) {       \
  } else                 \
    FOREDRAFT_CHECK_FAILED(#condition " ")

#define FOREDRAFT_CHECK_OP(a, op, b) \
  if ((a)op(b)) {                    \
  } else                             \
    FOREDRAFT_CHECK_FAILED(::foredraft::internal::ShowOperands(#a " " #op " " #b, (a), (b)))

#define CHECK_EQ(a, b) FOREDRAFT_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) FOREDRAFT_CHECK_OP(a, !=, b)
#define CHECK_LE(a, b) FOREDRAFT_CHECK_OP(a, <=, b)
#define CHECK_LT(a, b) FOREDRAFT_CHECK_OP(a, <, b)
#define CHECK_GE(a, b) FOREDRAFT_CHECK_OP(a, >=, b)
#define CHECK_GT(a, b) FOREDRAFT_CHECK_OP(a, >, b)
