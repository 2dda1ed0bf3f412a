// Requests of OpenAI's Responses API: the first byte chooses what becomes of unknown fields, the rest is
// the body. Refused with one line that names a field, or good for scheduler and device; then an answer, whole
// and as a stream, which say the same.

#include <memory>
#include <string>

#include "base/check.h"
#include "server/api/responses/responses_wire.h"
#include "tests/fuzz/wire_check.h"
#include "tests/server/http/scripted_answers.h"

namespace foredraft {
namespace {

void CheckAnswer(std::unique_ptr<AnswerFormat> whole, std::unique_ptr<AnswerFormat> stream,
                 const ServedAbacus::Answer& answer) {
  const auto body = nlohmann::ordered_json::parse(WholeText(*whole, answer));
  CHECK_EQ(JoinedResponse(SentEvents(StreamText(*stream, answer))).dump(), body.dump());
  CHECK_EQ(body["usage"]["output_tokens"].get<size_t>(), answer.whole.token_ids.size());
}

}  // namespace
}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const foredraft::ResponsesWire wire(foredraft::ResponsesWire::Path::kResponses);
  if (size == 0) return 0;
  foredraft::FuzzWire(wire, data[0] % 2 == 1, std::string(reinterpret_cast<const char*>(data) + 1, size - 1),
                      foredraft::CheckAnswer);
  return 0;
}
