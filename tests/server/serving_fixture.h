#pragma once

// A whole frontend on a scripted rank, with abacus's tokenizer, reached over a real port.

#include <grpcpp/channel.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "foredraft/v1/admin.grpc.pb.h"
#include "foredraft/v1/generation.grpc.pb.h"
#include "server/frontend.h"
#include "tests/server/scripted_rank.h"

namespace foredraft {

struct TestServerOptions {
  TestServerOptions();

  FrontendOptions frontend;    // ports of the kernel's choice, the admin listener on a unix socket
  SchedulerOptions scheduler;  // 8 slots, 512 tokens, K 3
  ServingLoopOptions loop;     // 64 requests may wait
  ScriptedRankOptions rank;
  std::string model_path;  // in the model card
  bool serve = true;       // false: stays loading
  // What ReloadConfig does; by default it refuses a file with an unknown key.
  std::function<absl::StatusOr<ReloadReport>()> reload;
};

class TestServer {
 public:
  explicit TestServer(const TestServerOptions& options = {});
  ~TestServer();

  void Serve();  // for serve = false

  Frontend& frontend() { return *frontend_; }
  Listeners& listeners() { return frontend_->listeners(); }
  ScriptedRank& rank() { return rank_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  v1::GenerationService::Stub& stub() { return *stub_; }
  v1::AdminService::Stub& admin() { return *admin_; }  // over a unix socket, unless the options say otherwise
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  std::string address() const;

  // One sample of a metric; `labels` need not be all of them. Fails the test if there is none.
  double Metric(const std::string& name, const std::map<std::string, std::string>& labels = {});
  // Head and body of a page of metrics_address; `token` goes along unless empty.
  std::string Http(const std::string& path, const std::string& token = "") const;
  // Waits until the condition holds, at most 10 s.
  bool Eventually(const std::function<bool()>& condition);
  // Nothing runs, waits or holds a block, and no call is open.
  bool IsIdle();

 private:
  TestServerOptions options_;
  ScriptedRank rank_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Frontend> frontend_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

// A stream read to its end.
struct StreamResult {
  std::vector<v1::GenerateChunk> chunks;
  grpc::Status status;

  std::string text() const;
  std::vector<int32_t> token_ids() const;
  std::vector<v1::TokenOrigin> origins() const;
  const v1::GenerateChunk& last() const { return chunks.back(); }
};
StreamResult ReadStream(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request,
                        grpc::ClientContext* context = nullptr);

// token_ids {5, 6, 7}, this seed, this many tokens at most.
v1::GenerateRequest SimpleRequest(uint64_t seed, int max_tokens);

// Checks that there is one origin per token, and that their numbers are those of the accounting.
void ExpectConsistentOrigins(const std::vector<v1::TokenOrigin>& origins, const v1::Usage& usage,
                             const v1::Speculation& speculation);

// Checks that completion_tokens = 1 + steps + accepted_tokens, and related counts.
void ExpectConsistentAccounting(const v1::Usage& usage, const v1::Speculation& speculation);

// Messages of generic calls, by hand.
grpc::ByteBuffer Bytes(const std::string& text);
std::string Text(const grpc::ByteBuffer& buffer);

}  // namespace foredraft
