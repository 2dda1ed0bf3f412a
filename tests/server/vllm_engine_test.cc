// vllm.grpc.engine over a real port, on the scripted rank.

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "server/api/vllm_engine/messages.h"
#include "tests/server/serving_fixture.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace foredraft {
namespace {

using grpc::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using vllm_wire::GenerateRequest;

using Stub = vllm_wire::VllmEngine::Stub;

std::unique_ptr<Stub> StubOf(const TestServer& server) {
  return vllm_wire::VllmEngine::NewStub(server.channel());
}

GenerateRequest MakeRequest(int32_t seed, int max_tokens, bool stream) {
  GenerateRequest request;
  for (uint32_t id : {5, 6, 7}) request.mutable_tokenized()->add_input_ids(id);
  request.mutable_sampling_params()->set_seed(seed);
  request.mutable_sampling_params()->set_max_tokens(max_tokens);
  request.set_stream(stream);
  return request;
}

struct Answer {
  std::vector<vllm_wire::GenerateStreamChunk> chunks;
  std::vector<vllm_wire::GenerateComplete> completes;
  grpc::Status status;

  std::vector<uint32_t> chunk_ids() const {
    std::vector<uint32_t> ids;
    for (const auto& chunk : chunks)
      ids.insert(ids.end(), chunk.token_ids().begin(), chunk.token_ids().end());
    return ids;
  }
  std::vector<uint32_t> ids() const {
    return {completes.at(0).output_ids().begin(), completes.at(0).output_ids().end()};
  }
};

Answer ReadAll(Stub& stub, const GenerateRequest& request, grpc::ClientContext* context = nullptr) {
  grpc::ClientContext own;
  const auto reader = stub.Generate(context != nullptr ? context : &own, request);
  Answer answer;
  vllm_wire::GenerateResponse response;
  while (reader->Read(&response)) {
    EXPECT_TRUE(answer.completes.empty()) << "nothing follows `complete`";
    if (response.has_chunk()) {
      EXPECT_GT(response.chunk().token_ids_size(), 0);
      answer.chunks.push_back(response.chunk());
    } else {
      EXPECT_TRUE(response.has_complete());
      answer.completes.push_back(response.complete());
    }
  }
  answer.status = reader->Finish();
  return answer;
}

TEST(VllmEngine, ChunksAndCompleteHaveTheTokensOfV1AtEveryK) {
  for (const int draft_len : {0, 1, 2, 3}) {
    TestServerOptions options;
    options.scheduler.draft_len = draft_len;
    TestServer server(options);
    const auto stub = StubOf(server);
    for (const int max_tokens : {1, 2, 7, 64}) {
      const StreamResult v1 = ReadStream(server.stub(), SimpleRequest(50 + max_tokens, max_tokens));
      const std::vector<uint32_t> expected = [&] {
        const std::vector<int32_t> ids = v1.token_ids();
        return std::vector<uint32_t>(ids.begin(), ids.end());
      }();
      const Answer stream = ReadAll(*stub, MakeRequest(50 + max_tokens, max_tokens, true));
      const Answer whole = ReadAll(*stub, MakeRequest(50 + max_tokens, max_tokens, false));
      for (const Answer* answer : {&stream, &whole}) {
        ASSERT_TRUE(answer->status.ok()) << answer->status.error_message();
        ASSERT_EQ(answer->completes.size(), 1u);
        const vllm_wire::GenerateComplete& complete = answer->completes[0];
        EXPECT_EQ(answer->ids(), expected);
        EXPECT_EQ(complete.finish_reason(), "length");
        EXPECT_EQ(complete.prompt_tokens(), 3u);
        EXPECT_EQ(complete.completion_tokens(), expected.size());
        EXPECT_EQ(complete.spec_draft_tokens(),
                  static_cast<uint32_t>(v1.last().speculation().draft_tokens()));
        EXPECT_EQ(complete.spec_accepted_tokens(),
                  static_cast<uint32_t>(v1.last().speculation().accepted_tokens()));
        EXPECT_EQ(complete.matched_stop_case(), vllm_wire::GenerateComplete::MATCHED_STOP_NOT_SET);
        EXPECT_FALSE(complete.has_output_logprobs());
      }
      EXPECT_EQ(stream.chunk_ids(), expected);
      EXPECT_TRUE(whole.chunks.empty());
      uint32_t count = 0;
      for (const auto& chunk : stream.chunks) {
        EXPECT_EQ(chunk.completion_tokens(), count += chunk.token_ids_size());
        EXPECT_EQ(chunk.prompt_tokens(), 3u);
      }
    }
  }
}

TEST(VllmEngine, LogprobsComeWithChunksAndAllAgainAtTheEnd) {
  TestServer server;
  GenerateRequest request = MakeRequest(3, 10, true);
  for (const int tops : {0, 3, 20}) {
    request.mutable_sampling_params()->set_logprobs(tops);
    const Answer answer = ReadAll(*StubOf(server), request);
    ASSERT_TRUE(answer.status.ok());
    const vllm_wire::OutputLogProbs& all = answer.completes.at(0).output_logprobs();
    std::vector<float> from_chunks;
    for (const auto& chunk : answer.chunks) {
      EXPECT_EQ(chunk.output_logprobs().token_ids_size(), chunk.token_ids_size());
      for (const float logprob : chunk.output_logprobs().token_logprobs()) from_chunks.push_back(logprob);
    }
    EXPECT_EQ(from_chunks, std::vector<float>(all.token_logprobs().begin(), all.token_logprobs().end()));
    ASSERT_EQ(all.top_logprobs_size(), 10);
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(all.token_ids(i), answer.ids()[i]);
      EXPECT_EQ(all.top_logprobs(i).values_size(), tops);
      EXPECT_EQ(all.top_logprobs(i).token_ids_size(), tops);
    }
  }
}

TEST(VllmEngine, StopsNameWhatMatched) {
  TestServer server;
  server.rank().SetScript(4, {300, 301, 302, 1});
  GenerateRequest request = MakeRequest(4, 10, true);
  Answer answer = ReadAll(*StubOf(server), request);
  EXPECT_EQ(answer.completes.at(0).finish_reason(), "stop");
  EXPECT_THAT(answer.ids(), ElementsAre(300, 301, 302, 1)) << "EOS is part of the ids";
  request.mutable_sampling_params()->add_stop_token_ids(301);
  answer = ReadAll(*StubOf(server), request);
  EXPECT_EQ(answer.completes.at(0).matched_token_id(), 301u);
  EXPECT_THAT(answer.ids(), ElementsAre(300, 301));
  server.rank().SetScript(8, *server.tokenizer().Encode("The answer is 971. END of it.", {.add_bos = false}));
  request = MakeRequest(8, 400, true);
  request.mutable_sampling_params()->add_stop("END of");
  answer = ReadAll(*StubOf(server), request);
  EXPECT_EQ(answer.completes.at(0).matched_stop_str(), "END of");
  EXPECT_EQ(answer.chunk_ids(), answer.ids());
}

struct Refusal {
  const char* name;
  std::function<void(GenerateRequest&, vllm_wire::SamplingParams&)> spoil;
  const char* says;
};
const Refusal kRefusals[] = {
    {"NoInput", [](auto& r, auto&) { r.clear_input(); }, "input: empty"},
    {"KvTransfer", [](auto& r, auto&) { r.mutable_kv_transfer_params(); },
     "kv_transfer_params: not supported"},
    {"KvTransferJson", [](auto& r, auto&) { r.set_kv_transfer_params_json("{}"); },
     "kv_transfer_params_json"},
    {"Media", [](auto& r, auto&) { r.mutable_mm_inputs(); }, "mm_inputs: not supported"},
    {"MoreMedia", [](auto& r, auto&) { r.add_extra_mm_inputs(); }, "extra_mm_inputs: not supported"},
    {"MediaRefs", [](auto& r, auto&) { r.mutable_media_refs(); }, "media_refs: not supported"},
    {"Rank", [](auto& r, auto&) { r.set_data_parallel_rank(1); }, "data_parallel_rank: 1, allowed 0"},
    {"MinTokens", [](auto&, auto& p) { p.set_min_tokens(5000); }, "min_tokens: 5000, allowed 0.."},
    {"N", [](auto&, auto& p) { p.set_n(2); }, "sampling_params.n: 2, allowed 1"},
    {"JsonSchema", [](auto&, auto& p) { p.set_json_schema("{\"not\": {\"format\": \"date\"}}"); },
     "sampling_params.json_schema: #/not: not supported, allowed a schema without it"},
    {"NoJson", [](auto&, auto& p) { p.set_json_schema("{\"type\": \"object\""); },
     "sampling_params.json_schema: not JSON at byte"},
    {"Regex", [](auto&, auto& p) { p.set_regex("a(?=b)"); }, "sampling_params.regex: (?= at byte 1"},
    {"Grammar", [](auto&, auto& p) { p.set_grammar("a"); }, "sampling_params.grammar: "},
    {"Tag", [](auto&, auto& p) { p.set_structural_tag("a"); }, "sampling_params.structural_tag: not JSON"},
    {"Choice", [](auto&, auto& p) { p.mutable_choice(); },
     "sampling_params.choice: 0 choices, allowed 1..1000"},
    {"ConstraintIgnoresEos",
     [](auto&, auto& p) {
       p.set_json_object(true);
       p.set_ignore_eos(true);
     },
     "ignore_eos: true, allowed false with a constraint"},
    {"AllLogprobs", [](auto&, auto& p) { p.set_logprobs(-1); }, "logprobs: -1, allowed 0..20"},
    {"PromptLogprobs", [](auto&, auto& p) { p.set_prompt_logprobs(0); },
     "sampling_params.prompt_logprobs: 0"},
    {"StopInOutput", [](auto&, auto& p) { p.set_include_stop_str_in_output(true); },
     "sampling_params.include_stop_str_in_output: true"},
    {"LogitBias", [](auto&, auto& p) { (*p.mutable_logit_bias())[3] = 101; },
     "logit_bias[3]: 101, allowed -100..100"},
    {"Truncate", [](auto&, auto& p) { p.set_truncate_prompt_tokens(9); },
     "sampling_params.truncate_prompt_tokens: 9"},
    {"LargeId", [](auto& r, auto&) { r.mutable_tokenized()->add_input_ids(3'000'000'000); },
     "tokenized.input_ids[3]: 3000000000"},
    {"LargeMaxTokens", [](auto&, auto& p) { p.set_max_tokens(3'000'000'000); },
     "sampling_params.max_tokens: 3000000000"},
    {"LargeStopId", [](auto&, auto& p) { p.add_stop_token_ids(3'000'000'000); },
     "sampling_params.stop_token_ids[0]: 3000000000"},
    {"LongId", [](auto& r, auto&) { r.set_request_id(std::string(129, 'x')); }, "request_id: 129 bytes"},
    {"TopP", [](auto&, auto& p) { p.set_top_p(1.5F); }, "top_p: 1.5"},
};

TEST(VllmEngine, RefusesByNameWhatItDoesNotHave) {
  TestServer server;
  const auto stub = StubOf(server);
  for (const Refusal& refusal : kRefusals) {
    SCOPED_TRACE(refusal.name);
    GenerateRequest request = MakeRequest(1, 5, true);
    refusal.spoil(request, *request.mutable_sampling_params());
    const Answer answer = ReadAll(*stub, request);
    EXPECT_EQ(answer.status.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(answer.status.error_message(), HasSubstr(refusal.says));
    EXPECT_TRUE(answer.chunks.empty() && answer.completes.empty());
  }
  EXPECT_EQ(server.Metric("requests_total", {{"outcome", "invalid"}}), std::size(kRefusals));
  EXPECT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
}

TEST(VllmEngine, ReadsUnsetScalarsAsTheWireMeansThem) {
  GenerateRequest wire = MakeRequest(-1, 7, false);
  absl::StatusOr<ClientRequest> request = ReadRequest(wire);
  ASSERT_TRUE(request.ok());
  EXPECT_FALSE(request->sampling.temperature.has_value());
  EXPECT_FALSE(request->sampling.top_p.has_value());
  EXPECT_FALSE(request->sampling.repetition_penalty.has_value());
  EXPECT_EQ(request->sampling.top_k, 0);
  EXPECT_EQ(request->sampling.seed, 0xffffffffu) << "the bits of int32 -1";
  EXPECT_EQ(request->max_tokens, 7);
  EXPECT_FALSE(request->logprobs.has_value());
  wire.set_text("<think>");
  wire.mutable_sampling_params()->clear_max_tokens();
  wire.mutable_sampling_params()->set_temperature(0);
  wire.mutable_sampling_params()->set_top_p(0.9F);
  wire.mutable_sampling_params()->set_n(1);
  request = ReadRequest(wire);
  ASSERT_TRUE(request.ok());
  EXPECT_TRUE(request->parse_special);
  EXPECT_EQ(std::get<std::string>(request->input), "<think>");
  EXPECT_FALSE(request->max_tokens.has_value());
  EXPECT_EQ(request->sampling.temperature, 0);
  EXPECT_EQ(request->sampling.top_p, 0.9F);
}

TEST(VllmEngine, AbortEndsTheStreamOkWithTheTokensSoFar) {
  for (const bool stream : {true, false}) {
    TestServerOptions options;
    options.rank.step_time = std::chrono::milliseconds(2);
    TestServer server(options);
    const auto stub = StubOf(server);
    GenerateRequest request = MakeRequest(1, 450, stream);
    request.set_request_id("chatcmpl-1");
    std::future<Answer> answer = std::async(std::launch::async, [&] { return ReadAll(*stub, request); });
    ASSERT_TRUE(server.Eventually([&] { return server.Metric("generation_tokens_total") > 5; }));
    // A second request with this id is refused while the first call lives.
    EXPECT_EQ(ReadAll(*stub, request).status.error_code(), StatusCode::ALREADY_EXISTS);
    vllm_wire::AbortRequest abort;
    abort.add_request_ids("unknown");
    abort.add_request_ids("chatcmpl-1");
    vllm_wire::AbortResponse aborted;
    grpc::ClientContext context;
    EXPECT_TRUE(stub->Abort(&context, abort, &aborted).ok());
    const Answer ended = answer.get();
    EXPECT_TRUE(ended.status.ok()) << ended.status.error_message();
    ASSERT_EQ(ended.completes.size(), 1u);
    EXPECT_EQ(ended.completes[0].finish_reason(), "abort");
    EXPECT_GT(ended.ids().size(), 0u);
    EXPECT_LT(ended.ids().size(), 450u);
    if (stream) {
      EXPECT_EQ(ended.chunk_ids(), ended.ids());
    }
    EXPECT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
    EXPECT_EQ(server.Metric("requests_total", {{"outcome", "cancelled"}}), 1);
    // The id is free again.
    request.mutable_sampling_params()->set_max_tokens(2);
    EXPECT_TRUE(ReadAll(*stub, request).status.ok());
  }
}

TEST(VllmEngine, ClientsThatLeaveEndTheirSequence) {
  TestServerOptions options;
  options.rank.step_time = std::chrono::milliseconds(2);
  TestServer server(options);
  const auto stub = StubOf(server);
  for (const bool stream : {true, false}) {
    grpc::ClientContext context;
    std::future<Answer> answer =
        std::async(std::launch::async, [&] { return ReadAll(*stub, MakeRequest(1, 450, stream), &context); });
    ASSERT_TRUE(server.Eventually([&] { return server.Metric("requests_running") == 1; }));
    context.TryCancel();
    EXPECT_EQ(answer.get().status.error_code(), StatusCode::CANCELLED) << "the client's own status";
    EXPECT_TRUE(server.Eventually([&] { return server.IsIdle(); }));
  }
}

TEST(VllmEngine, ADeadlineIsAnAbortWithStatusOk) {
  TestServerOptions options;
  options.frontend.request_timeout_s = 1;
  options.rank.step_time = std::chrono::milliseconds(20);
  TestServer server(options);
  for (const bool stream : {true, false}) {
    const Answer answer = ReadAll(*StubOf(server), MakeRequest(1, 450, stream));
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.completes.size(), 1u);
    EXPECT_EQ(answer.completes[0].finish_reason(), "abort");
    EXPECT_GT(answer.ids().size(), 0u);
  }
}

TEST(VllmEngine, ALostRankIsUnavailable) {
  for (const bool stream : {true, false}) {
    TestServerOptions options;
    options.rank.step_time = std::chrono::milliseconds(2);
    TestServer server(options);
    const auto stub = StubOf(server);
    std::future<Answer> answer =
        std::async(std::launch::async, [&] { return ReadAll(*stub, MakeRequest(1, 450, stream)); });
    ASSERT_TRUE(server.Eventually([&] { return server.Metric("generation_tokens_total") > 5; }));
    server.rank().Lose();
    const Answer ended = answer.get();
    EXPECT_EQ(ended.status.error_code(), StatusCode::UNAVAILABLE);
    EXPECT_TRUE(ended.completes.empty());
    EXPECT_EQ(ended.chunks.empty(), !stream);
  }
}

TEST(VllmEngine, HealthAndModelFollowTheLife) {
  TestServerOptions options;
  options.serve = false;
  TestServer server(options);
  const auto stub = StubOf(server);
  const auto health = [&](vllm_wire::HealthCheckResponse* response) {
    grpc::ClientContext context;
    return stub->HealthCheck(&context, {}, response);
  };
  vllm_wire::HealthCheckResponse response;
  EXPECT_EQ(health(&response).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReadAll(*stub, MakeRequest(1, 5, true)).status.error_code(), StatusCode::UNAVAILABLE);
  server.Serve();
  ASSERT_TRUE(health(&response).ok());
  EXPECT_TRUE(response.healthy());
  EXPECT_EQ(response.message(), "serving");

  server.frontend().BeginDrain();
  ASSERT_TRUE(health(&response).ok());
  EXPECT_FALSE(response.healthy());
  EXPECT_EQ(response.message(), "draining");
  EXPECT_EQ(ReadAll(*stub, MakeRequest(1, 5, true)).status.error_code(), StatusCode::UNAVAILABLE);
  vllm_wire::GetModelInfoResponse model;
  grpc::ClientContext model_context;
  ASSERT_TRUE(stub->GetModelInfo(&model_context, {}, &model).ok()) << "a gateway asks while it drains too";
  EXPECT_TRUE(model.is_generation());
  EXPECT_EQ(model.served_model_name(), "scripted");
  EXPECT_EQ(model.vocab_size(), 768u);
}

TEST(VllmEngine, LoadsAndServerInfoCountTokens) {
  TestServerOptions options;
  options.rank.step_time = std::chrono::milliseconds(20);
  TestServer server(options);
  const auto stub = StubOf(server);
  std::vector<std::future<Answer>> calls;
  vllm_wire::AbortRequest abort;
  for (int i = 0; i < 10; ++i) {
    GenerateRequest request = MakeRequest(i + 1, 450, true);
    request.set_request_id(std::to_string(i));
    abort.add_request_ids(request.request_id());
    calls.push_back(std::async(std::launch::async, [&stub, request] { return ReadAll(*stub, request); }));
  }
  const auto loads = [&] {
    vllm_wire::GetLoadsResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(stub->GetLoads(&context, {}, &response).ok());
    return response;
  };
  EXPECT_TRUE(server.Eventually([&] {
    const vllm_wire::SchedulerLoad load = loads().loads(0);
    return load.num_running_reqs() == 8 && load.num_waiting_reqs() == 2;
  }));
  const vllm_wire::GetLoadsResponse full = loads();
  EXPECT_EQ(full.dp_rank_count(), 1);
  EXPECT_EQ(full.loads(0).num_total_reqs(), 10);
  EXPECT_EQ(full.loads(0).num_waiting_uncached_tokens(), 6);
  EXPECT_EQ(full.loads(0).max_total_num_tokens(), 8 * 33 * 16);
  EXPECT_GT(full.loads(0).num_used_tokens(), 0);
  EXPECT_DOUBLE_EQ(full.loads(0).token_usage(),
                   static_cast<double>(full.loads(0).num_used_tokens()) / (8 * 33 * 16));
  vllm_wire::GetServerInfoResponse info;
  grpc::ClientContext info_context;
  ASSERT_TRUE(stub->GetServerInfo(&info_context, {}, &info).ok());
  EXPECT_EQ(info.active_requests(), 10u);
  EXPECT_EQ(info.server_type(), "foredraft");
  EXPECT_EQ(info.max_num_seqs(), 8);
  // Computed over at least a second, while the streams run.
  EXPECT_TRUE(server.Eventually([&] { return loads().loads(0).gen_throughput() > 0; }));
  vllm_wire::AbortResponse aborted;
  grpc::ClientContext abort_context;
  EXPECT_TRUE(stub->Abort(&abort_context, abort, &aborted).ok());
  for (auto& call : calls) EXPECT_TRUE(call.get().status.ok());
}

TEST(VllmEngine, GetTokenizerSendsTheModelsFilesInPieces) {
  const std::filesystem::path directory = testing::TempDir() + "/bundle" + std::to_string(getpid());
  std::filesystem::remove_all(directory);
  std::filesystem::create_directory(directory);
  const auto bundle = [&] {
    TestServerOptions options;
    options.model_path = directory;
    TestServer server(options);
    const auto stub = StubOf(server);
    grpc::ClientContext context;
    const auto reader = stub->GetTokenizer(&context, {});
    std::string bytes;
    smg::grpc::common::GetTokenizerChunk chunk;
    int chunks = 0;
    std::string sha256;
    while (reader->Read(&chunk)) {
      EXPECT_TRUE(sha256.empty()) << "only the last chunk has the hash";
      EXPECT_LE(chunk.data().size(), 64u << 10);
      bytes += chunk.data();
      sha256 = chunk.sha256();
      ++chunks;
    }
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.ok(), sha256.size() == 64);
    if (status.ok()) {
      EXPECT_GT(chunks, 2);
    }
    return std::make_pair(bytes, status);
  };
  EXPECT_EQ(bundle().second.error_code(), StatusCode::NOT_FOUND);
  std::ofstream(directory / "tiktoken.model") << std::string(150'000, 'r');
  EXPECT_THAT(bundle().first, HasSubstr("tiktoken.model"));
  const std::string tokenizer(150'000, 'x');
  std::ofstream(directory / "tokenizer.json") << tokenizer;
  std::ofstream(directory / "config.json") << "{}";
  std::ofstream(directory / "model.safetensors") << "weights stay";
  const std::string zip = bundle().first;
  EXPECT_EQ(zip.substr(0, 4), std::string("PK\3\4"));
  EXPECT_THAT(zip, HasSubstr(tokenizer)) << "stored, not compressed";
  EXPECT_THAT(zip, HasSubstr("config.json"));
  EXPECT_THAT(zip, testing::Not(HasSubstr("weights stay")));
  EXPECT_EQ(bundle().first, zip) << "the same files give the same bytes";
}

TEST(VllmEngine, AGatewayListenerHasThisServiceAlone) {
  TestServerOptions options;
  options.frontend.server.gateway_address = "127.0.0.1:0";
  TestServer server(options);
  const auto gateway = grpc::CreateChannel("127.0.0.1:" + std::to_string(server.listeners().gateway_port()),
                                           grpc::InsecureChannelCredentials());
  EXPECT_TRUE(ReadAll(*vllm_wire::VllmEngine::NewStub(gateway), MakeRequest(1, 5, true)).status.ok());
  EXPECT_EQ(ReadStream(*v1::GenerationService::NewStub(gateway), SimpleRequest(1, 5)).status.error_code(),
            StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(ReadAll(*StubOf(server), MakeRequest(1, 5, true)).status.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(ReadStream(server.stub(), SimpleRequest(1, 5)).status.ok());
}

}  // namespace
}  // namespace foredraft
