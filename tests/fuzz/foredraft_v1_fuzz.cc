// Requests of foredraft.v1: refused with one line that names a field, or good for scheduler and device; then
// an answer, translated into the messages of both ways to ask. Tokenize and Detokenize too.

#include <utility>

#include "base/check.h"
#include "foredraft/v1/generation.pb.h"
#include "server/api/foredraft_v1/messages.h"
#include "server/text/utf8.h"
#include "tests/fuzz/proto_input.h"
#include "tests/fuzz/served_abacus.h"

namespace foredraft {
namespace {

void CheckChunks(const ServedAbacus::Answer& answer, const ResponseLabels& labels) {
  v1::GenerateChunk chunk;
  CallJoiner joiner;
  int64_t tokens = 0;
  std::string text, thinking;
  std::vector<std::string> calls;
  const auto add_calls = [&calls](const auto& message) {
    for (const v1::ToolCall& call : message.tool_calls()) calls.push_back(call.SerializeAsString());
  };
  for (const OutputDelta& delta : answer.deltas) {
    FillChunk(delta, labels, joiner, &chunk);
    const bool is_last = &delta == &answer.deltas.back();
    if (!is_last) add_calls(chunk);
    CHECK_EQ(chunk.index(), tokens);
    CHECK_EQ(chunk.token_origins_size(), chunk.token_ids_size());
    CHECK_EQ(chunk.token_text_bytes_size(), chunk.token_ids_size());
    tokens += chunk.token_ids_size();
    text += chunk.text();
    thinking += chunk.thinking();
  }
  FillEnd(answer.stats, answer.end, labels, joiner, &chunk);
  add_calls(chunk);
  CHECK_EQ(chunk.usage().completion_tokens(), tokens);
  v1::GenerateResponse response;
  FillResponse(answer.whole, answer.end, labels, &response);
  CHECK_EQ(response.text(), text);
  CHECK_EQ(response.thinking(), thinking);
  const std::vector<std::string> joined = std::exchange(calls, {});
  add_calls(response);
  CHECK(joined == calls) << joined.size() << " calls, whole " << calls.size();
  CHECK_EQ(response.token_ids_size(), tokens);
  CHECK_EQ(response.finish_reason(), chunk.finish_reason());
  v1::GenerateResponse again;
  CHECK(again.ParseFromString(response.SerializeAsString()));
}

void Generate(const v1::GenerateRequest& wire) {
  ServedAbacus& abacus = ServedAbacus::Get();
  auto checked = abacus.validator().Check(ReadRequest(wire));
  if (!checked.ok()) return ServedAbacus::CheckRefusal(checked.status());
  const ResponseLabels labels{
      .request_id = wire.request_id(), .seed = checked->request.sampling.seed, .max_draft_len = 7};
  CHECK(!wire.sampling().has_seed() || labels.seed == wire.sampling().seed());
  CheckChunks(abacus.Play(*std::move(checked)), labels);
}

void Tokenize(const v1::TokenizeRequest& wire) {
  const RequestValidator& validator = ServedAbacus::Get().validator();
  const bool add_bos = !wire.has_add_bos() || wire.add_bos();
  const auto ids =
      validator.Tokenize(ReadInput(wire), {.parse_special = wire.parse_special(), .add_bos = add_bos},
                         ReadChoices(wire), ReadTools(wire.chat()));
  if (!ids.ok()) return ServedAbacus::CheckRefusal(ids.status());
  const auto text = validator.Detokenize(*ids);
  CHECK(text.ok()) << text.status();
}

void Detokenize(const v1::DetokenizeRequest& wire) {
  const auto& ids = wire.token_ids();
  const auto text = ServedAbacus::Get().validator().Detokenize({ids.data(), static_cast<size_t>(ids.size())});
  if (!text.ok()) return ServedAbacus::CheckRefusal(text.status());
  CHECK(IsValidUtf8(*text)) << *text;
}

}  // namespace

const std::vector<const google::protobuf::Message*>& FuzzedMessages() {
  static const auto& types = *new std::vector<const google::protobuf::Message*>{
      &v1::GenerateRequest::default_instance(), &v1::TokenizeRequest::default_instance(),
      &v1::DetokenizeRequest::default_instance()};
  return types;
}

void FuzzMessage(const google::protobuf::Message& message) {
  if (const auto* generate = dynamic_cast<const v1::GenerateRequest*>(&message)) return Generate(*generate);
  if (const auto* tokenize = dynamic_cast<const v1::TokenizeRequest*>(&message)) return Tokenize(*tokenize);
  Detokenize(dynamic_cast<const v1::DetokenizeRequest&>(message));
}

}  // namespace foredraft
