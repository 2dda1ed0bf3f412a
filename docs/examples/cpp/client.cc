// A client of foredraft.v1 (docs/examples/README.md).
//
// usage: client [--server HOST:PORT] stream QUESTION
//        client [--server HOST:PORT] cancel QUESTION
//        client [--server HOST:PORT] logprobs TEXT
//        client [--server HOST:PORT] turns QUESTION...

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "foredraft/v1/generation.grpc.pb.h"

namespace {

namespace v1 = foredraft::v1;
using Stub = v1::GenerationService::Stub;
using Messages = std::vector<std::pair<std::string, std::string>>;  // role, content

// A request for the answer to the messages, greedy. An absent field has the model's default.
v1::GenerateRequest ChatRequest(const Messages& messages, int max_tokens) {
  v1::GenerateRequest request;
  request.set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  for (const auto& [role, content] : messages) {
    v1::ChatMessage* message = request.mutable_chat()->add_messages();
    message->set_role(role);
    message->set_content(content);
  }
  return request;
}

// The RPC's deadline holds in the daemon's queue too.
void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
}

grpc::Status Stream(Stub& stub, const std::string& question) {
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto reader = stub.GenerateStream(&context, ChatRequest({{"user", question}}, 400));
  v1::GenerateChunk chunk;
  while (reader->Read(&chunk)) {
    std::fputs((chunk.thinking() + chunk.text()).c_str(), stdout);
    std::fflush(stdout);
  }
  // usage, speculation and timing are final in the last chunk.
  std::printf("\n%s: %d + %d tokens, %d of %d drafts accepted, %.0f tokens/s\n",
              chunk.finish_reason().c_str(), chunk.usage().prompt_tokens(), chunk.usage().completion_tokens(),
              chunk.speculation().accepted_tokens(), chunk.speculation().draft_tokens(),
              chunk.timing().tokens_per_second());
  return reader->Finish();
}

grpc::Status Cancel(Stub& stub, const std::string& question) {
  constexpr int kEnough = 20;
  v1::GenerateRequest request = ChatRequest({{"user", question}}, 4000);
  request.set_ignore_eos(true);  // without the cancel it would run to max_tokens
  grpc::ClientContext context;
  const auto reader = stub.GenerateStream(&context, request);
  int tokens = 0;
  v1::GenerateChunk chunk;
  while (reader->Read(&chunk)) {
    tokens += chunk.token_ids_size();
    if (tokens >= kEnough) context.TryCancel();  // the daemon ends the request and gives its KV blocks back
  }
  const grpc::Status status = reader->Finish();
  if (status.error_code() != grpc::StatusCode::CANCELLED) return status;
  std::printf("CANCELLED after %d tokens\n", tokens);
  return grpc::Status::OK;
}

std::string Spelled(Stub& stub, int token_id) {
  grpc::ClientContext context;
  v1::DetokenizeRequest request;
  request.add_token_ids(token_id);
  v1::DetokenizeResponse response;
  return stub.Detokenize(&context, request, &response).ok() ? "'" + response.text() + "'" : "?";
}

grpc::Status Logprobs(Stub& stub, const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.set_max_tokens(8);
  request.set_logprobs(3);
  request.mutable_sampling()->set_temperature(0);
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::GenerateResponse response;
  const grpc::Status status = stub.Generate(&context, request, &response);
  for (const v1::TokenLogprob& token : response.logprobs()) {
    std::printf("%s %.3f   of", Spelled(stub, token.token_id()).c_str(), token.logprob());
    for (const v1::TopLogprob& rival : token.top()) {
      std::printf(" %s %.3f", Spelled(stub, rival.token_id()).c_str(), rival.logprob());
    }
    std::printf("\n");
  }
  return status;
}

grpc::Status Turns(Stub& stub, const std::vector<std::string>& questions) {
  Messages messages;
  for (const std::string& question : questions) {
    messages.emplace_back("user", question);
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GenerateResponse response;
    const grpc::Status status = stub.Generate(&context, ChatRequest(messages, 400), &response);
    if (!status.ok()) return status;
    // A reasoning model's thinking is apart; the history takes the answer alone.
    const std::string& answer = response.text();
    messages.emplace_back("assistant", answer);
    std::printf("> %s\n%s   (prompt %d tokens, cached %d)\n", question.c_str(), answer.c_str(),
                response.usage().prompt_tokens(), response.usage().cached_tokens());
  }
  return grpc::Status::OK;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  std::string server = "127.0.0.1:50051";
  if (arguments.size() >= 2 && arguments[0] == "--server") {
    server = arguments[1];
    arguments.erase(arguments.begin(), arguments.begin() + 2);
  }
  if (arguments.size() < 2) {
    std::fprintf(stderr, "usage: client [--server HOST:PORT] stream|cancel|logprobs|turns TEXT...\n");
    return 2;
  }
  // With TLS: grpc::SslCredentials({ca_pem, key_pem, certificate_pem}).
  const auto channel = grpc::CreateChannel(server, grpc::InsecureChannelCredentials());
  const std::unique_ptr<Stub> stub = v1::GenerationService::NewStub(channel);
  const std::string command = arguments[0];
  arguments.erase(arguments.begin());
  grpc::Status status(grpc::StatusCode::INVALID_ARGUMENT, command + ": unknown command");
  if (command == "stream") status = Stream(*stub, arguments[0]);
  if (command == "cancel") status = Cancel(*stub, arguments[0]);
  if (command == "logprobs") status = Logprobs(*stub, arguments[0]);
  if (command == "turns") status = Turns(*stub, arguments);
  if (status.ok()) return 0;
  // The text names the field, the value and what is allowed.
  std::fprintf(stderr, "client: %d %s\n", status.error_code(), status.error_message().c_str());
  return 1;
}
