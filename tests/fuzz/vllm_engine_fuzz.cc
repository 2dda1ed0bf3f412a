// Requests of vllm.grpc.engine: refused with one line that names a field, or good for scheduler and device;
// then an answer in that wire's messages.

#include "base/check.h"
#include "server/api/vllm_engine/messages.h"
#include "tests/fuzz/proto_input.h"
#include "tests/fuzz/served_abacus.h"

namespace foredraft {

const std::vector<const google::protobuf::Message*>& FuzzedMessages() {
  static const auto& types =
      *new std::vector<const google::protobuf::Message*>{&vllm_wire::GenerateRequest::default_instance()};
  return types;
}

void FuzzMessage(const google::protobuf::Message& message) {
  const auto& wire = dynamic_cast<const vllm_wire::GenerateRequest&>(message);
  auto client = ReadRequest(wire);
  if (!client.ok()) return ServedAbacus::CheckRefusal(client.status());
  ServedAbacus& abacus = ServedAbacus::Get();
  auto checked = abacus.validator().Check(*std::move(client));
  if (!checked.ok()) return ServedAbacus::CheckRefusal(checked.status());
  const bool has_logprobs = checked->request.logprob_count >= 0;
  const ServedAbacus::Answer answer = abacus.Play(*std::move(checked));
  int64_t tokens = 0;
  for (const OutputDelta& delta : answer.deltas) {
    if (delta.token_ids.empty()) continue;
    vllm_wire::GenerateStreamChunk chunk;
    FillChunk(delta, &chunk);
    tokens += chunk.token_ids_size();
    CHECK_EQ(static_cast<int64_t>(chunk.completion_tokens()), tokens);
    CHECK_EQ(chunk.output_logprobs().token_ids_size(), has_logprobs ? chunk.token_ids_size() : 0);
  }
  vllm_wire::GenerateComplete complete;
  FillComplete(answer.whole, answer.end, &complete);
  CHECK_EQ(complete.output_ids_size(), tokens);
  CHECK_EQ(static_cast<int64_t>(complete.completion_tokens()), tokens);
  CHECK(complete.finish_reason() == "stop" || complete.finish_reason() == "length")
      << complete.finish_reason();
}

}  // namespace foredraft
