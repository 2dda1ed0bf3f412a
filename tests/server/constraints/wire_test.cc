// Constraints through foredraft.v1 and over HTTP. The rank is scripted, so its tokens do not follow them:
// what is tested is what is taken, refused, counted and reloaded.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "server/api/foredraft_v1/messages.h"
#include "tests/server/http/http_client.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Asked {
  std::function<void(v1::Constraint&)> set;
  Constraint::Kind kind;
  std::string source;
};
const Asked kAsked[] = {
    {[](auto& c) { c.set_json_schema("{}"); }, Constraint::kJsonSchema, "{}"},
    {[](auto& c) { c.set_json_object(true); }, Constraint::kJsonObject, ""},
    {[](auto& c) { c.set_regex("a+"); }, Constraint::kRegex, "a+"},
    {[](auto& c) { c.mutable_choice()->add_choices("yes"); }, Constraint::kChoice, ""},
    {[](auto& c) { c.set_grammar("root ::= \"a\""); }, Constraint::kGbnf, "root ::= \"a\""},
    {[](auto& c) { c.set_structural_tag(R"({"type":"any_text"})"); }, Constraint::kStructuralTag,
     R"({"type":"any_text"})"}};

grpc::Status Generate(TestServer& server, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  v1::GenerateResponse response;
  return server.stub().Generate(&context, request, &response);
}

v1::GetModelResponse Model(TestServer& server) {
  grpc::ClientContext context;
  v1::GetModelResponse model;
  EXPECT_TRUE(server.stub().GetModel(&context, {}, &model).ok());
  return model;
}

TEST(ConstraintWire, EveryKindArrives) {
  TestServer server;
  for (const Asked& asked : kAsked) {
    v1::GenerateRequest wire = SimpleRequest(1, 5);
    asked.set(*wire.mutable_constraint());
    wire.mutable_constraint()->set_compact(asked.kind == Constraint::kJsonObject);
    wire.mutable_constraint()->set_from_first_token(asked.kind == Constraint::kRegex);
    const ClientRequest request = ReadRequest(wire);
    ASSERT_TRUE(request.constraint.has_value());
    const std::string name(ConstraintField(asked.kind));
    EXPECT_EQ(request.constraint->field, "constraint." + name);
    EXPECT_EQ(request.constraint->kind, asked.kind);
    EXPECT_EQ(request.constraint->source, asked.source);
    EXPECT_EQ(request.constraint->choices.size(), asked.kind == Constraint::kChoice ? 1u : 0u);
    EXPECT_EQ(request.constraint->compact, asked.kind == Constraint::kJsonObject);
    EXPECT_EQ(request.constraint->from_first_token, asked.kind == Constraint::kRegex);
    const grpc::Status status = Generate(server, wire);
    EXPECT_TRUE(status.ok()) << name << ": " << status.error_message();
    EXPECT_EQ(server.Metric("constrained_requests_total", {{"kind", name}}), 1);
  }
  EXPECT_FALSE(ReadRequest(SimpleRequest(1, 5)).constraint.has_value());
  EXPECT_THAT(Model(server).constraints(),
              ElementsAre("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"));
  EXPECT_EQ(server.Metric("constraint_cache_lookups_total", {{"result", "miss"}}), std::size(kAsked));
  EXPECT_EQ(server.Metric("constraint_compile_seconds"), std::size(kAsked));
  EXPECT_GT(server.Metric("constraint_cache_bytes"), 0);
}

TEST(ConstraintWire, AConstraintThatSaysNothingIsRefused) {
  TestServer server;
  v1::GenerateRequest request = SimpleRequest(1, 5);
  request.mutable_constraint()->set_json_object(false);
  const grpc::Status status = Generate(server, request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("constraint: empty, allowed one of json_schema"));
  EXPECT_EQ(server.Metric("constraint_refused_total", {{"reason", "source"}}), 1);
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "invalid"}}), 1);
}

TEST(ConstraintWire, AReloadTurnsItOffAndOn) {
  TestServer server;
  v1::GenerateRequest request = SimpleRequest(1, 5);
  request.mutable_constraint()->set_regex("(abc){10}");
  EXPECT_TRUE(Generate(server, request).ok());
  server.frontend().SetConstraints(std::nullopt);
  EXPECT_THAT(Generate(server, request).error_message(),
              HasSubstr("constraint.regex: structured output is off"));
  EXPECT_THAT(Model(server).constraints(), IsEmpty());
  server.frontend().SetConstraints(ConstraintsConfig{.max_nodes = 1000, .max_depth = 1});
  request.mutable_constraint()->set_json_schema(
      R"({"type":"object","properties":{"a":{"type":"array"}},"required":["a"]})");
  EXPECT_THAT(Generate(server, request).error_message(), HasSubstr("constraints.max_depth"));
  EXPECT_EQ(server.Metric("constraint_refused_total", {{"reason", "limit"}}), 1);
  server.frontend().SetConstraints(ConstraintsConfig{});
  EXPECT_TRUE(Generate(server, request).ok());
}

TEST(ConstraintWire, OverHttpTheFieldIsTheClients) {
  TestServerOptions options;
  options.frontend.server.http_address = "127.0.0.1:0";
  TestServer server(options);
  const auto ask = [&](const json& format) {
    const json body = {
        {"messages", {{{"role", "user"}, {"content", "a"}}}}, {"response_format", format}, {"max_tokens", 5}};
    return Ask(server.listeners().http_port(), "POST", "/v1/chat/completions", body.dump());
  };
  const auto schema = [](const json& schema) {
    return json{{"type", "json_schema"},
                {"json_schema", {{"name", "n"}, {"strict", true}, {"schema", schema}}}};
  };
  EXPECT_EQ(ask({{"type", "json_object"}}).status, 200);
  EXPECT_EQ(ask(schema({{"type", "object"}})).status, 200);
  const HttpReply refused =
      ask(schema({{"type", "object"}, {"uniqueItems", true}, {"not", {{"format", "date"}}}, {"if", true}}));
  EXPECT_EQ(refused.status, 400);
  const json error = json::parse(refused.body)["error"];
  EXPECT_EQ(error["param"], "response_format.json_schema.schema");
  EXPECT_THAT(error["message"].get<std::string>(),
              testing::StartsWith("response_format.json_schema.schema: #/"));
}

// Compiling is not for gRPC's threads: a constraint waits for the pool, however short its text is.
TEST(ConstraintWire, ConstraintsAreCompiledByThePool) {
  TestServer server;
  v1::GenerateRequest request = SimpleRequest(1, 5);
  request.mutable_constraint()->set_regex("a");
  EXPECT_TRUE(Generate(server, request).ok());
  server.frontend().SetMaxQueueSize(0);
  const grpc::Status status = Generate(server, request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("0 long inputs wait"));
}

}  // namespace
}  // namespace foredraft
