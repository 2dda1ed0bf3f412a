// What of a gRPC request had no effect is in its answer's trailing metadata.

#include <gtest/gtest.h>

#include <string>

#include "server/text/field_notes.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

std::string IgnoredOf(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find(kIgnoredHeader);
  return found == metadata.end() ? "none" : std::string(found->second.data(), found->second.size());
}

TEST(IgnoredMetadata, NamesWhatHadNoEffect) {
  TestServer server;
  v1::GenerateRequest request;
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("1+2");
  request.set_max_tokens(4);
  for (const bool asks : {false, true}) {
    if (asks) request.mutable_chat()->set_reasoning_effort("high");
    grpc::ClientContext context;
    v1::GenerateResponse response;
    const grpc::Status status = server.stub().Generate(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(IgnoredOf(context), asks ? "reasoning_effort" : "none");
  }
  EXPECT_EQ(server.Metric("ignored_fields_total", {{"wire", "other"}, {"kind", "dropped"}}), 1);
  // A refusal has them, too; gRPC's max_tokens is not lowered.
  request.set_max_tokens(100'000);
  grpc::ClientContext context;
  v1::GenerateResponse response;
  EXPECT_EQ(server.stub().Generate(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(IgnoredOf(context), "reasoning_effort");
}

}  // namespace
}  // namespace foredraft
