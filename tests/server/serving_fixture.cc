#include "tests/server/serving_fixture.h"

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace foredraft {
namespace {

constexpr char kTokenizerFile[] = "deploy/models/abacus/tokenizer.json";
constexpr int kVocabSize = 768;

std::unique_ptr<Tokenizer> LoadTokenizer() {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(kTokenizerFile);
  CHECK(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

double ValueOf(const prometheus::ClientMetric& metric, prometheus::MetricType type) {
  if (type == prometheus::MetricType::Counter) return metric.counter.value;
  if (type == prometheus::MetricType::Gauge) return metric.gauge.value;
  return static_cast<double>(metric.histogram.sample_count);
}

bool HasLabels(const prometheus::ClientMetric& metric, const std::map<std::string, std::string>& labels) {
  return std::all_of(labels.begin(), labels.end(), [&](const auto& wanted) {
    return std::any_of(metric.label.begin(), metric.label.end(),
                       [&](const prometheus::ClientMetric::Label& label) {
                         return label.name == wanted.first && label.value == wanted.second;
                       });
  });
}

}  // namespace

TestServerOptions::TestServerOptions() {
  static std::atomic<int> count = 0;
  reload = [] { return absl::InvalidArgumentError("test.yaml:1: modle: unknown key, nearest is model"); };
  frontend.server.grpc_address = "127.0.0.1:0";
  frontend.server.admin_address =
      absl::StrCat("unix:", testing::TempDir(), "/foredraft_admin_", getpid(), "_", count++);
  // No metrics page: Metric reads the registry, and closing a page takes 2 s.
  frontend.server.metrics_address = "";
  frontend.metrics.model_name = "scripted";
  frontend.metrics.max_draft_len = 3;
  scheduler.max_batch_size = 8;
  scheduler.max_seq_len = 512;
  loop.max_queue_size = 64;
  scheduler.groups[0].tokens_per_block = 16;
  scheduler.groups[0].block_count = 1 + 8 * 33;
  scheduler.batch_sizes = {1, 2, 4, 8};
  scheduler.enable_block_reuse = false;
  scheduler.max_draft_len = 3;
  scheduler.drafter = {.module_count = 1, .rows_ahead = 3};
  scheduler.draft_len = 3;
}

TestServer::TestServer(const TestServerOptions& options)
    : options_(options), rank_(options.rank), tokenizer_(LoadTokenizer()) {
  AdminHooks hooks;
  hooks.config_yaml = [] { return std::string("model: scripted\n"); };
  hooks.reload = options.reload;
  hooks.drain = [this] { frontend_->BeginDrain(); };
  absl::StatusOr<std::unique_ptr<Frontend>> frontend = Frontend::Listen(options.frontend, hooks);
  CHECK(frontend.ok()) << frontend.status().ToString();
  frontend_ = *std::move(frontend);
  channel_ = grpc::CreateChannel(address(), grpc::InsecureChannelCredentials());
  stub_ = v1::GenerationService::NewStub(channel_);
  const std::string admin = frontend_->listeners().admin_address();
  admin_ = v1::AdminService::NewStub(
      admin.empty() ? channel_ : grpc::CreateChannel(admin, grpc::InsecureChannelCredentials()));
  if (options.serve) Serve();
}

TestServer::~TestServer() {
  rank_.Release();
  frontend_->Shutdown();
}

void TestServer::Serve() {
  ServedModel model;
  model.tokenizer = LoadTokenizer();
  model.limits = {.vocab_size = kVocabSize,
                  .size = options_.scheduler.request_size(),
                  .longest_token_bytes = 32,
                  .eos_ids = {1},
                  .thinking = {.begin = *model.tokenizer->AddedTokenId("<think>"),
                               .end = *model.tokenizer->AddedTokenId("</think>")}};
  model.scheduler = options_.scheduler;
  model.loop = options_.loop;
  model.executors = {&rank_};
  model.card = {.name = "scripted",
                .model_path = options_.model_path,
                .vocab_size = kVocabSize,
                .max_batch_size = options_.scheduler.max_batch_size,
                .tokens_per_block = options_.scheduler.groups[0].tokens_per_block,
                .max_draft_len = options_.scheduler.max_draft_len};
  frontend_->Serve(std::move(model));
}

std::string TestServer::address() const {
  return absl::StrCat("127.0.0.1:", frontend_->listeners().grpc_port());
}

double TestServer::Metric(const std::string& name, const std::map<std::string, std::string>& labels) {
  for (const prometheus::MetricFamily& family : frontend_->metrics().Collect()) {
    if (family.name != "foredraft_" + name) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      if (HasLabels(metric, labels)) return ValueOf(metric, family.type);
    }
  }
  ADD_FAILURE() << "no metric foredraft_" << name;
  return -1;
}

std::string TestServer::Http(const std::string& path, const std::string& token) const {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(frontend_->listeners().metrics_port()));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  std::string page;
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.0\r\n", token.empty() ? "" : "Authorization: Bearer ", token,
                   token.empty() ? "" : "\r\n", "\r\n");
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      write(fd, request.data(), request.size()) > 0) {
    char buffer[4096];
    for (ssize_t count = 0; (count = read(fd, buffer, sizeof(buffer))) > 0;) page.append(buffer, count);
  }
  close(fd);
  return page;
}

bool TestServer::Eventually(const std::function<bool()>& condition) {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock<std::mutex> lock(mutex);
  for (int tick = 0; tick < 2000; ++tick) {
    if (condition()) return true;
    never.wait_for(lock, std::chrono::milliseconds(5));
  }
  return false;
}

bool TestServer::IsIdle() {
  return frontend_->open_calls() == 0 && Metric("requests_running") == 0 && Metric("requests_waiting") == 0 &&
         Metric("kv_cache_blocks", {{"state", "used"}}) == 0;
}

std::string StreamResult::text() const {
  std::string text;
  for (const v1::GenerateChunk& chunk : chunks) text += chunk.text();
  return text;
}

std::vector<int32_t> StreamResult::token_ids() const {
  std::vector<int32_t> ids;
  for (const v1::GenerateChunk& chunk : chunks)
    ids.insert(ids.end(), chunk.token_ids().begin(), chunk.token_ids().end());
  return ids;
}

std::vector<v1::TokenOrigin> StreamResult::origins() const {
  std::vector<v1::TokenOrigin> origins;
  for (const v1::GenerateChunk& chunk : chunks) {
    EXPECT_EQ(chunk.token_origins_size(), chunk.token_ids_size());
    EXPECT_EQ(chunk.token_text_bytes_size(), chunk.token_ids_size());
    for (const int origin : chunk.token_origins()) origins.push_back(static_cast<v1::TokenOrigin>(origin));
  }
  return origins;
}

StreamResult ReadStream(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request,
                        grpc::ClientContext* context) {
  grpc::ClientContext own;
  const auto reader = stub.GenerateStream(context != nullptr ? context : &own, request);
  StreamResult result;
  v1::GenerateChunk chunk;
  while (reader->Read(&chunk)) result.chunks.push_back(chunk);
  result.status = reader->Finish();
  return result;
}

v1::GenerateRequest SimpleRequest(uint64_t seed, int max_tokens) {
  v1::GenerateRequest request;
  for (int32_t id : {5, 6, 7}) request.mutable_token_ids()->add_ids(id);
  request.mutable_sampling()->set_seed(seed);
  request.set_max_tokens(max_tokens);
  return request;
}

void ExpectConsistentOrigins(const std::vector<v1::TokenOrigin>& origins, const v1::Usage& usage,
                             const v1::Speculation& speculation) {
  const auto count = [&](v1::TokenOrigin origin) {
    return std::count(origins.begin(), origins.end(), origin);
  };
  EXPECT_EQ(static_cast<int>(origins.size()), usage.completion_tokens());
  EXPECT_EQ(count(v1::TOKEN_ORIGIN_FIRST), usage.completion_tokens() > 0 ? 1 : 0);
  // The last step may be cut behind an accepted draft, as may the one that ends the thought before a grammar.
  const auto cut = speculation.steps() - count(v1::TOKEN_ORIGIN_TARGET);
  EXPECT_GE(cut, 0);
  EXPECT_LE(cut, 2);
  EXPECT_EQ(count(v1::TOKEN_ORIGIN_DRAFTED), speculation.accepted_tokens() + cut);
  if (!origins.empty()) {
    EXPECT_EQ(origins.front(), v1::TOKEN_ORIGIN_FIRST);
  }
  // A step is drafted tokens, then one of the target.
  if (origins.size() > 1 && cut == 0) {
    EXPECT_EQ(origins.back(), v1::TOKEN_ORIGIN_TARGET);
  }
}

void ExpectConsistentAccounting(const v1::Usage& usage, const v1::Speculation& speculation) {
  EXPECT_EQ(usage.completion_tokens(), 1 + speculation.steps() + speculation.accepted_tokens());
  const auto& by_position = speculation.accepted_per_position();
  EXPECT_EQ(std::accumulate(by_position.begin(), by_position.end(), 0), speculation.accepted_tokens());
  EXPECT_LE(speculation.accepted_tokens(), speculation.draft_tokens());
  const auto& histogram = speculation.accepted_histogram();
  EXPECT_EQ(histogram.size(), by_position.size() + 1);
  EXPECT_EQ(std::accumulate(histogram.begin(), histogram.end(), 0), speculation.steps());
  int accepted = 0;
  for (int i = 0; i < histogram.size(); ++i) {
    EXPECT_GE(histogram.Get(i), 0) << i;
    accepted += i * histogram.Get(i);
  }
  EXPECT_EQ(accepted, speculation.accepted_tokens());
  const double length = speculation.steps() == 0
                            ? 1.0
                            : 1.0 + static_cast<double>(speculation.accepted_tokens()) / speculation.steps();
  EXPECT_DOUBLE_EQ(speculation.acceptance_length(), length);
}

grpc::ByteBuffer Bytes(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

std::string Text(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  buffer.Dump(&slices).ok();
  std::string text;
  for (const grpc::Slice& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

}  // namespace foredraft
