// A compressed body: its outcome follows from its bytes alone, a limit of its own size changes nothing, one
// byte less refuses it, and the budget gets back what was taken.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "server/http/body_coding.h"

namespace foredraft {
namespace {

constexpr int64_t kMostBytes = 1 << 20;

// Status 0: taken.
int StatusOf(BodyCoding coding, std::string_view body, int64_t max_bytes, InflatedBody& inflated) {
  BodyBudget budget(kMostBytes);
  const std::optional<HttpRefusal> refusal = Inflate(coding, body, max_bytes, budget, inflated);
  CHECK_EQ(inflated.taken, static_cast<int64_t>(inflated.text.size()));
  CHECK_EQ(budget.left(), kMostBytes - inflated.taken);
  CHECK_LE(inflated.taken, max_bytes);
  return refusal.has_value() ? refusal->status : 0;
}

}  // namespace
}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace foredraft;  // NOLINT(google-build-using-namespace): of this function alone
  if (size == 0) return 0;
  const BodyCoding coding = data[0] % 2 == 0 ? BodyCoding::kGzip : BodyCoding::kDeflate;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  InflatedBody whole;
  const int status = StatusOf(coding, body, kMostBytes, whole);
  CHECK(status == 0 || status == 400 || status == 413);
  if (status != 0) return 0;
  InflatedBody again;
  CHECK_EQ(StatusOf(coding, body, whole.taken, again), 0);
  CHECK(again.text == whole.text);
  InflatedBody less;
  if (whole.taken > 0) {
    CHECK_EQ(StatusOf(coding, body, whole.taken - 1, less), 413);
  }
  return 0;
}
