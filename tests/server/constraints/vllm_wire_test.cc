// Constraints on the wire of vLLM's engine, on the scripted rank.

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "server/api/vllm_engine/messages.h"
#include "tests/server/serving_fixture.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace foredraft {
namespace {

using vllm_wire::GenerateRequest;

std::unique_ptr<vllm_wire::VllmEngine::Stub> StubOf(const TestServer& server) {
  return vllm_wire::VllmEngine::NewStub(server.channel());
}

GenerateRequest MakeRequest() {
  GenerateRequest request;
  for (uint32_t id : {5, 6, 7}) request.mutable_tokenized()->add_input_ids(id);
  request.mutable_sampling_params()->set_max_tokens(5);
  return request;
}

grpc::Status Generate(const TestServer& server, const GenerateRequest& request) {
  grpc::ClientContext context;
  const auto stub = StubOf(server);
  const auto reader = stub->Generate(&context, request);
  vllm_wire::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  return reader->Finish();
}

TEST(VllmConstraints, EveryKindArrives) {
  struct Case {
    std::function<void(vllm_wire::SamplingParams&)> set;
    Constraint::Kind kind;
    std::string source;
  };
  const Case cases[] = {
      {[](auto& p) { p.set_json_schema("{}"); }, Constraint::kJsonSchema, "{}"},
      {[](auto& p) { p.set_regex("a+"); }, Constraint::kRegex, "a+"},
      {[](auto& p) { p.set_grammar("root ::= \"a\""); }, Constraint::kGbnf, "root ::= \"a\""},
      {[](auto& p) { p.set_structural_tag("{\"type\":\"any_text\"}"); }, Constraint::kStructuralTag,
       "{\"type\":\"any_text\"}"},
      {[](auto& p) { p.set_json_object(true); }, Constraint::kJsonObject, ""},
      {[](auto& p) { p.mutable_choice()->add_choices("yes"); }, Constraint::kChoice, ""}};
  TestServer server;
  for (const Case& test : cases) {
    GenerateRequest wire = MakeRequest();
    test.set(*wire.mutable_sampling_params());
    wire.mutable_sampling_params()->set_grammar_from_first_token(test.kind == Constraint::kRegex);
    const absl::StatusOr<ClientRequest> request = ReadRequest(wire);
    ASSERT_TRUE(request.ok() && request->constraint.has_value());
    EXPECT_EQ(request->constraint->kind, test.kind);
    EXPECT_EQ(request->constraint->source, test.source);
    EXPECT_EQ(request->constraint->from_first_token, test.kind == Constraint::kRegex);
    EXPECT_EQ(request->constraint->choices.size(), test.kind == Constraint::kChoice ? 1u : 0u);
    const std::string name(ConstraintField(test.kind));
    EXPECT_EQ(request->constraint->field, "sampling_params." + name);
    EXPECT_TRUE(Generate(server, wire).ok()) << name;
    EXPECT_EQ(server.Metric("constrained_requests_total", {{"kind", name}}), 1);
  }
  GenerateRequest unset = MakeRequest();
  unset.mutable_sampling_params()->set_json_object(false);
  EXPECT_FALSE(ReadRequest(unset)->constraint.has_value());
}

TEST(VllmConstraints, TheServerSaysWhereTheyBegin) {
  for (const bool on : {true, false}) {
    TestServerOptions options;
    if (!on) options.frontend.constraints.reset();
    TestServer server(options);
    vllm_wire::GetServerInfoResponse info;
    grpc::ClientContext context;
    ASSERT_TRUE(StubOf(server)->GetServerInfo(&context, {}, &info).ok());
    EXPECT_EQ(info.constrained_decoding_start(), on ? "after_reasoning" : "");
    EXPECT_EQ(info.engine_reasoning_parser(), "");
    GenerateRequest request = MakeRequest();
    request.mutable_sampling_params()->set_regex("a");
    const grpc::Status status = Generate(server, request);
    EXPECT_EQ(status.ok(), on);
    if (on) continue;
    EXPECT_EQ(status.error_message(),
              "sampling_params.regex: structured output is off (constraints: null), allowed unset");
    EXPECT_EQ(server.Metric("constraint_refused_total", {{"reason", "off"}}), 1);
  }
}

}  // namespace
}  // namespace foredraft
