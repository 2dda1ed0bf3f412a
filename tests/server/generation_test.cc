#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <numeric>
#include <thread>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::vector<int32_t> Expected(const TestServer& server, uint64_t seed, int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) {
    ids.push_back(const_cast<TestServer&>(server).rank().ScriptedTokenAt(seed, i));
  }
  return ids;
}

std::vector<int32_t> Ids(const v1::GenerateResponse& response) {
  return {response.token_ids().begin(), response.token_ids().end()};
}

// google.rpc.ErrorInfo's reason in the details of a status.
std::string ReasonIn(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), status.error_code());
  EXPECT_EQ(details.message(), status.error_message());
  if (details.details_size() != 1 || !details.details(0).UnpackTo(&info)) return "no ErrorInfo";
  EXPECT_EQ(info.domain(), "foredraft");
  return info.reason();
}

TEST(Generation, StreamAndUnaryGiveTheSameTokensTextAndAccounting) {
  TestServer server;
  for (int max_tokens : {1, 2, 7, 64}) {
    const v1::GenerateRequest request = SimpleRequest(40 + max_tokens, max_tokens);
    const StreamResult stream = ReadStream(server.stub(), request);
    ASSERT_TRUE(stream.status.ok()) << stream.status.error_message();
    grpc::ClientContext context;
    v1::GenerateResponse unary;
    ASSERT_TRUE(server.stub().Generate(&context, request, &unary).ok());

    EXPECT_EQ(stream.token_ids(), Expected(server, 40 + max_tokens, max_tokens));
    EXPECT_EQ(stream.token_ids(), Ids(unary));
    EXPECT_EQ(stream.text(), unary.text());
    EXPECT_EQ(unary.text(), server.tokenizer().Decode(Ids(unary)));
    EXPECT_EQ(stream.last().finish_reason(), "length");
    EXPECT_EQ(stream.last().finish(), v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(stream.chunks.front().finish() == v1::FINISH_REASON_UNSPECIFIED, stream.chunks.size() > 1);
    EXPECT_EQ(stream.last().usage().SerializeAsString(), unary.usage().SerializeAsString());
    EXPECT_EQ(stream.last().speculation().SerializeAsString(), unary.speculation().SerializeAsString());
    EXPECT_EQ(unary.usage().prompt_tokens(), 3);
    EXPECT_EQ(unary.usage().completion_tokens(), max_tokens);
    ExpectConsistentAccounting(unary.usage(), unary.speculation());
    const std::vector<v1::TokenOrigin> origins = stream.origins();
    ExpectConsistentOrigins(origins, unary.usage(), unary.speculation());
    EXPECT_TRUE(std::equal(origins.begin(), origins.end(), unary.token_origins().begin(),
                           unary.token_origins().end()));
    EXPECT_EQ(std::accumulate(unary.token_text_bytes().begin(), unary.token_text_bytes().end(), size_t{0}),
              unary.text().size());
    EXPECT_GT(unary.timing().total_ms(), 0);
    EXPECT_GE(unary.timing().total_ms(), unary.timing().ttft_ms());
  }
}

TEST(Generation, ChunksCarryTheirIndexAndOnlyTheLastIsFinal) {
  TestServerOptions options;
  options.rank.step_time = std::chrono::milliseconds(2);
  TestServer server(options);
  const StreamResult stream = ReadStream(server.stub(), SimpleRequest(1, 40));
  ASSERT_TRUE(stream.status.ok());
  ASSERT_GT(stream.chunks.size(), 2u);
  int index = 0;
  for (const v1::GenerateChunk& chunk : stream.chunks) {
    EXPECT_EQ(chunk.index(), index);
    index += chunk.token_ids_size();
    EXPECT_EQ(chunk.usage().completion_tokens(), index);
    EXPECT_EQ(chunk.finish_reason().empty(), &chunk != &stream.last());
    EXPECT_EQ(chunk.has_timing(), &chunk == &stream.last());
  }
  EXPECT_EQ(stream.chunks.front().seed(), 1u);
  EXPECT_EQ(stream.chunks.front().request_id(), stream.last().request_id());
}

TEST(Generation, ASeedIsDrawnAndNamedAndGivesTheTokensAgain) {
  TestServer server;
  v1::GenerateRequest request = SimpleRequest(0, 20);
  request.mutable_sampling()->clear_seed();
  v1::GenerateResponse first, again;
  grpc::ClientContext first_context, again_context;
  ASSERT_TRUE(server.stub().Generate(&first_context, request, &first).ok());
  request.mutable_sampling()->set_seed(first.seed());
  request.set_request_id("mine");
  ASSERT_TRUE(server.stub().Generate(&again_context, request, &again).ok());
  EXPECT_EQ(Ids(first), Ids(again));
  EXPECT_THAT(first.request_id(), Not(IsEmpty()));
  EXPECT_EQ(again.request_id(), "mine");
}

// Drafts capped, a stop string, a stop token, a slow reader, and more sequences than the cache has room for.
TEST(Generation, OriginsAddUpToTheAccountingInEveryCase) {
  TestServerOptions options;
  options.scheduler.groups[0].block_count =
      24;  // half of what 8 sequences take: some are swapped out and in again
  options.scheduler.host_frame_count = 100;
  TestServer server(options);
  const int32_t stop_id = Expected(server, 900, 30).back();
  std::vector<std::future<void>> clients;
  for (int i = 0; i < 24; ++i) {
    clients.push_back(std::async(std::launch::async, [&server, stop_id, i] {
      v1::GenerateRequest request = SimpleRequest(900 + i % 8, 60);
      if (i % 4 == 1) request.set_max_draft_tokens(0);
      if (i % 4 == 2) request.add_stop_token_ids(stop_id);
      if (i % 4 == 3) request.add_stop(std::string(1, static_cast<char>('a' + i)));
      const StreamResult stream = ReadStream(server.stub(), request);
      ASSERT_TRUE(stream.status.ok()) << stream.status.error_message();
      ExpectConsistentAccounting(stream.last().usage(), stream.last().speculation());
      ExpectConsistentOrigins(stream.origins(), stream.last().usage(), stream.last().speculation());
      if (i % 4 == 1) {
        EXPECT_EQ(stream.last().speculation().accepted_tokens(), 0);
      }
    }));
  }
  for (std::future<void>& client : clients) client.get();
  EXPECT_GT(server.Metric("preemptions_total"), 0);
}

TEST(Generation, LogprobsComeOnePerTokenWithTheRequestedTops) {
  TestServer server;
  for (int tops : {0, 3, 20}) {
    v1::GenerateRequest request = SimpleRequest(3, 10);
    request.set_logprobs(tops);
    v1::GenerateResponse response;
    grpc::ClientContext context;
    ASSERT_TRUE(server.stub().Generate(&context, request, &response).ok());
    ASSERT_EQ(response.logprobs_size(), 10);
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(response.logprobs(i).token_id(), response.token_ids(i));
      EXPECT_EQ(response.logprobs(i).top_size(), tops);
    }
  }
}

TEST(Generation, StopStringsAcrossChunksEndTheSequenceToo) {
  TestServerOptions options;
  options.rank.step_time = std::chrono::milliseconds(1);
  TestServer server(options);
  const std::vector<int32_t> script =
      *server.tokenizer().Encode("The answer is 971. END of it, and so on for ever.", {.add_bos = false});
  server.rank().SetScript(8, script);
  v1::GenerateRequest request = SimpleRequest(8, 400);
  request.add_stop("END of");
  const StreamResult stream = ReadStream(server.stub(), request);
  ASSERT_TRUE(stream.status.ok());
  EXPECT_EQ(stream.text(), "The answer is 971. ");
  EXPECT_EQ(stream.last().finish_reason(), "stop");
  EXPECT_EQ(stream.last().matched_stop(), "END of");
  ExpectConsistentAccounting(stream.last().usage(), stream.last().speculation());
  EXPECT_EQ(stream.last().usage().completion_tokens(), static_cast<int>(stream.token_ids().size()));
  EXPECT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "stop"}}), 1);
  EXPECT_EQ(server.Metric("generation_tokens_total"), stream.last().usage().completion_tokens());
  EXPECT_LT(server.Metric("step_batch_size"), 60);  // steps: the 400 tokens would have taken over 100
}

TEST(Generation, EosEndsTheTextUnlessIgnored) {
  TestServer server;
  server.rank().SetScript(4, {300, 301, 1});
  v1::GenerateRequest request = SimpleRequest(4, 10);
  StreamResult stream = ReadStream(server.stub(), request);
  EXPECT_EQ(stream.last().finish_reason(), "stop");
  EXPECT_EQ(stream.token_ids(), std::vector<int32_t>({300, 301, 1}));
  EXPECT_EQ(stream.text(), server.tokenizer().Decode(std::vector<int32_t>{300, 301}));
  EXPECT_FALSE(stream.last().has_matched_stop_token_id());
  request.set_ignore_eos(true);
  EXPECT_EQ(ReadStream(server.stub(), request).last().usage().completion_tokens(), 10);
  request.add_stop_token_ids(301);
  stream = ReadStream(server.stub(), request);
  EXPECT_EQ(stream.last().matched_stop_token_id(), 301);
  EXPECT_EQ(stream.last().usage().completion_tokens(), 2);
}

TEST(Generation, DraftCapsBoundWhatIsVerified) {
  TestServer server;
  v1::GenerateRequest request = SimpleRequest(9, 50);
  request.set_max_draft_tokens(0);
  v1::GenerateResponse none, some;
  grpc::ClientContext none_context, some_context;
  ASSERT_TRUE(server.stub().Generate(&none_context, request, &none).ok());
  EXPECT_EQ(none.speculation().draft_tokens(), 0);
  EXPECT_EQ(none.speculation().steps(), 49);
  EXPECT_EQ(server.Metric("spec_decode_draft_length"), 0);
  request.clear_max_draft_tokens();
  ASSERT_TRUE(server.stub().Generate(&some_context, request, &some).ok());
  EXPECT_GT(some.speculation().accepted_tokens(), 0);
  EXPECT_EQ(Ids(none), Ids(some));
}

TEST(Generation, CountersEqualTheSumOfTheResponses) {
  TestServer server;
  std::vector<std::future<v1::GenerateResponse>> calls;
  for (int i = 0; i < 24; ++i) {
    calls.push_back(std::async(std::launch::async, [&server, i] {
      v1::GenerateRequest request = SimpleRequest(100 + i, 5 + 7 * i % 60);
      if (i % 3 == 0) request.add_stop("e");
      if (i % 4 == 0) request.set_max_draft_tokens(1);
      v1::GenerateResponse response;
      grpc::ClientContext context;
      const grpc::Status status = server.stub().Generate(&context, request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      return response;
    }));
  }
  std::map<std::string, double> sum;
  for (auto& call : calls) {
    const v1::GenerateResponse response = call.get();
    ExpectConsistentAccounting(response.usage(), response.speculation());
    sum["prompt"] += response.usage().prompt_tokens();
    sum["generated"] += response.usage().completion_tokens();
    sum["drafted"] += response.speculation().draft_tokens();
    sum["accepted"] += response.speculation().accepted_tokens();
    for (int i = 0; i < response.speculation().accepted_per_position_size(); ++i) {
      sum["at " + std::to_string(i + 1)] += response.speculation().accepted_per_position(i);
    }
    sum[response.finish_reason()] += 1;
  }
  const std::map<std::string, std::string> answer = {{"phase", "answer"}};
  EXPECT_EQ(server.Metric("prompt_tokens_total"), sum["prompt"]);
  EXPECT_EQ(server.Metric("generation_tokens_total"), sum["generated"]);
  EXPECT_EQ(server.Metric("spec_decode_draft_tokens_total", answer), sum["drafted"]);
  EXPECT_EQ(server.Metric("spec_decode_accepted_tokens_total", answer), sum["accepted"]);
  for (const char* position : {"1", "2", "3"}) {
    EXPECT_EQ(server.Metric("spec_decode_accepted_tokens_per_position_total",
                            {{"phase", "answer"}, {"position", position}}),
              sum[std::string("at ") + position]);
  }
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "stop"}}), sum["stop"]);
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "length"}}), sum["length"]);
  EXPECT_EQ(server.Metric("time_to_first_token_seconds"), 24);
  EXPECT_EQ(server.Metric("time_per_output_token_seconds"), sum["generated"] - 24);
}

TEST(Generation, TokenizeAndDetokenizeAreInverse) {
  TestServer server;
  v1::TokenizeRequest request;
  request.set_text("Compute 5+81. 🧮");
  v1::TokenizeResponse tokens;
  grpc::ClientContext context;
  ASSERT_TRUE(server.stub().Tokenize(&context, request, &tokens).ok());
  EXPECT_EQ(tokens.token_ids(0), server.tokenizer().bos_id());
  request.set_add_bos(false);
  grpc::ClientContext plain_context;
  ASSERT_TRUE(server.stub().Tokenize(&plain_context, request, &tokens).ok());
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext back_context;
  ASSERT_TRUE(server.stub().Detokenize(&back_context, back, &text).ok());
  EXPECT_EQ(text.text(), request.text());

  back.add_token_ids(768);
  grpc::ClientContext bad_context;
  const grpc::Status bad = server.stub().Detokenize(&bad_context, back, &text);
  EXPECT_EQ(bad.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(bad.error_message(), HasSubstr("768"));

  while (back.token_ids_size() <= 1 << 17) back.add_token_ids(5);
  grpc::ClientContext long_context;
  const grpc::Status too_long = server.stub().Detokenize(&long_context, back, &text);
  EXPECT_EQ(too_long.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(too_long.error_message(), HasSubstr("131,073 ids, allowed at most 131,072"));
}

// The statuses that a client may get, one test each; INVALID_ARGUMENT's fields are request_validator_test's.

TEST(StatusTable, BadFieldIsInvalidArgumentForBothKindsOfCall) {
  TestServer server;
  v1::GenerateRequest request = SimpleRequest(1, 10);
  request.mutable_sampling()->set_top_p(2);
  v1::GenerateResponse response;
  grpc::ClientContext context;
  const grpc::Status unary = server.stub().Generate(&context, request, &response);
  const StreamResult stream = ReadStream(server.stub(), request);
  for (const grpc::Status& status : {unary, stream.status}) {
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(), "sampling.top_p: 2, allowed above 0 to 1");
  }
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "invalid"}}), 2);
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "rejected"}}), 0);
}

TEST(StatusTable, FullQueueIsResourceExhaustedAtOnce) {
  TestServerOptions options;
  options.scheduler.max_batch_size = 1;
  options.scheduler.batch_sizes = {1};
  options.loop.max_queue_size = 2;
  TestServer server(options);
  server.rank().Hold();
  std::vector<std::future<StreamResult>> calls;
  const auto start = [&](uint64_t seed) {
    calls.push_back(std::async(
        std::launch::async, [&server, seed] { return ReadStream(server.stub(), SimpleRequest(seed, 20)); }));
  };
  start(1);
  EXPECT_TRUE(server.Eventually([&] { return server.frontend().open_calls() == 1; }));
  // One runs and at most three wait, whatever the loop has done so far: of ten more, at least seven are
  // refused.
  for (uint64_t seed = 2; seed < 12; ++seed) start(seed);
  EXPECT_TRUE(server.Eventually([&] {
    return server.Metric("requests_total", {{"outcome", "rejected"}}) >= 7;
  }));
  server.rank().Release();
  int served = 0;
  for (auto& call : calls) {
    const StreamResult result = call.get();
    if (result.status.ok()) {
      ++served;
      continue;
    }
    EXPECT_EQ(result.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(result.status.error_message(), HasSubstr("max_queue_size is 2"));
    EXPECT_EQ(ReasonIn(result.status), "QUEUE_FULL");
  }
  EXPECT_GE(served, 3);
  EXPECT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
}

TEST(StatusTable, ReaderTooSlowIsResourceExhaustedAndStallsNoOther) {
  TestServerOptions options;
  options.frontend.max_pending_tokens = 64;
  options.scheduler.max_seq_len = 60'000;
  options.scheduler.groups[0].block_count = 1 + 2 * 60'000 / 16;
  options.scheduler.max_batch_size = 2;
  options.scheduler.batch_sizes = {2};
  TestServer server(options);
  grpc::ClientContext context;
  v1::GenerateRequest request = SimpleRequest(1, 50'000);
  request.set_logprobs(20);  // large chunks fill the transport's window soon
  const auto reader = server.stub().GenerateStream(&context, request);
  ASSERT_TRUE(server.Eventually([&] {
    return server.Metric("requests_total", {{"outcome", "cancelled"}}) == 1;
  }));
  EXPECT_TRUE(ReadStream(server.stub(), SimpleRequest(2, 50)).status.ok());
  int tokens = 0;
  v1::GenerateChunk chunk;
  while (reader->Read(&chunk)) tokens += chunk.token_ids_size();
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("reader too slow"));
  EXPECT_EQ(ReasonIn(status), "READER_TOO_SLOW");
  EXPECT_LT(tokens, 50'000);
  EXPECT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
}

TEST(StatusTable, LoadingAndDrainingAreUnavailable) {
  TestServerOptions options;
  options.serve = false;
  TestServer server(options);
  const auto expect_unavailable = [&](const char* reason) {
    v1::GenerateResponse response;
    grpc::ClientContext context;
    const grpc::Status unary = server.stub().Generate(&context, SimpleRequest(1, 5), &response);
    const StreamResult stream = ReadStream(server.stub(), SimpleRequest(1, 5));
    for (const grpc::Status& status : {unary, stream.status}) {
      EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
      EXPECT_THAT(status.error_message(), HasSubstr(reason));
    }
  };
  expect_unavailable("loading");
  v1::GetModelResponse model;
  grpc::ClientContext model_context;
  EXPECT_EQ(server.stub().GetModel(&model_context, {}, &model).error_code(), StatusCode::UNAVAILABLE);
  server.Serve();
  EXPECT_TRUE(ReadStream(server.stub(), SimpleRequest(1, 5)).status.ok());
  server.frontend().BeginDrain();
  expect_unavailable("draining");
}

TEST(StatusTable, LostRankIsUnavailableAfterTheTokensSoFar) {
  TestServerOptions options;
  options.rank.step_time = std::chrono::milliseconds(2);
  TestServer server(options);
  grpc::ClientContext context;
  const auto reader = server.stub().GenerateStream(&context, SimpleRequest(5, 500));
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  server.rank().Lose();
  while (reader->Read(&chunk)) EXPECT_EQ(chunk.finish_reason(), "");
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::UNAVAILABLE);
  EXPECT_FALSE(server.frontend().CheckRanks().ok());
  EXPECT_EQ(ReadStream(server.stub(), SimpleRequest(5, 5)).status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(server.Metric("rank_failures_total"), 1);
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "error"}}), 1);
}

// Deadlines: {in the queue, in flight} x {stream, unary} x {the request's, the RPC's}.
struct DeadlineCase {
  const char* name;
  bool in_queue;
  bool by_rpc;
};
class Deadline : public testing::TestWithParam<DeadlineCase> {};

TEST_P(Deadline, EndsAStreamAfterItsLastChunkAndAUnaryCallWithoutResponse) {
  TestServerOptions options;
  options.scheduler.max_batch_size = GetParam().in_queue ? 1 : 2;
  options.scheduler.batch_sizes = {options.scheduler.max_batch_size};
  options.rank.step_time = std::chrono::milliseconds(5);
  TestServer server(options);
  grpc::ClientContext busy_context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateChunk>> busy;
  v1::GenerateChunk chunk;
  if (GetParam().in_queue) {
    v1::GenerateRequest first = SimpleRequest(1, 500);
    first.set_max_draft_tokens(0);
    busy = server.stub().GenerateStream(&busy_context, first);
    ASSERT_TRUE(busy->Read(&chunk));
  }
  v1::GenerateRequest request = SimpleRequest(2, 500);
  request.set_max_draft_tokens(0);  // 500 steps of 5 ms: not over by the deadline
  grpc::ClientContext stream_context, unary_context;
  for (grpc::ClientContext* context : {&stream_context, &unary_context}) {
    if (GetParam().by_rpc)
      context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(700));
  }
  if (!GetParam().by_rpc) request.set_timeout_s(0.3);
  auto unary = std::async(std::launch::async, [&] {
    v1::GenerateResponse response;
    const grpc::Status status = server.stub().Generate(&unary_context, request, &response);
    EXPECT_EQ(response.token_ids_size(), 0);
    return status;
  });
  const StreamResult stream = ReadStream(server.stub(), request, &stream_context);
  EXPECT_EQ(stream.status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(unary.get().error_code(), StatusCode::DEADLINE_EXCEEDED);
  ASSERT_FALSE(stream.chunks.empty());
  EXPECT_EQ(stream.last().finish_reason(), "deadline");
  EXPECT_EQ(stream.last().usage().completion_tokens(), static_cast<int>(stream.token_ids().size()));
  EXPECT_EQ(stream.token_ids(), Expected(server, 2, static_cast<int>(stream.token_ids().size())));
  if (GetParam().in_queue) {
    EXPECT_THAT(stream.token_ids(), IsEmpty());
  } else {
    ExpectConsistentAccounting(stream.last().usage(), stream.last().speculation());
  }
  busy_context.TryCancel();
  EXPECT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "deadline"}}), 2);
}

INSTANTIATE_TEST_SUITE_P(All, Deadline,
                         testing::Values(DeadlineCase{"QueueRequest", true, false},
                                         DeadlineCase{"QueueRpc", true, true},
                                         DeadlineCase{"FlightRequest", false, false},
                                         DeadlineCase{"FlightRpc", false, true}),
                         [](const auto& info) { return info.param.name; });

TEST(Cancel, BeforeStartMidFlightAndAtCompletionLeavesNothingBehind) {
  TestServerOptions options;
  options.scheduler.max_batch_size = 1;
  options.scheduler.batch_sizes = {1};
  options.rank.step_time = std::chrono::milliseconds(1);
  TestServer server(options);
  v1::GenerateChunk chunk;

  grpc::ClientContext running_context, waiting_context;
  const auto running = server.stub().GenerateStream(&running_context, SimpleRequest(1, 500));
  ASSERT_TRUE(running->Read(&chunk));
  const auto waiting = server.stub().GenerateStream(&waiting_context, SimpleRequest(2, 500));
  ASSERT_TRUE(server.Eventually([&] { return server.Metric("requests_waiting") == 1; }));
  waiting_context.TryCancel();  // before it starts
  EXPECT_EQ(waiting->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(server.Eventually([&] { return server.Metric("requests_waiting") == 0; }));
  running_context.TryCancel();  // mid-flight
  while (running->Read(&chunk)) continue;
  EXPECT_EQ(running->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "cancelled"}}), 2);

  grpc::ClientContext done_context;
  const auto done = server.stub().GenerateStream(&done_context, SimpleRequest(3, 5));
  while (done->Read(&chunk) && chunk.finish_reason().empty()) continue;
  done_context.TryCancel();  // at completion
  done->Finish();
  EXPECT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "length"}}), 1);
}

}  // namespace
}  // namespace foredraft
