#include "tests/e2e/rank_cluster.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace foredraft {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience(60);

void Tick() { poll(nullptr, 0, 10); }

std::string Address(int port) { return "127.0.0.1:" + std::to_string(port); }

// /proc/<pid>/cmdline with blanks between the arguments; empty if the process has ended.
std::string CommandLine(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  for (char& letter : text) {
    if (letter == '\0') letter = ' ';
  }
  return text;
}

// (pid, command line) of all processes.
std::vector<std::pair<pid_t, std::string>> Processes() {
  std::vector<std::pair<pid_t, std::string>> processes;
  DIR* proc = opendir("/proc");
  while (const dirent* entry = readdir(proc)) {
    if (const pid_t pid = std::atoi(entry->d_name); pid > 0)
      processes.emplace_back(pid, CommandLine(entry->d_name));
  }
  closedir(proc);
  return processes;
}

std::string HttpPage(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  std::string page;
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
    char buffer[4096];
    for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) > 0;) page.append(buffer, count);
  }
  close(fd);
  return page;
}

}  // namespace

v1::GenerateRequest TokenRequest(int seed, int prompt_len, int max_tokens) {
  v1::GenerateRequest request;
  for (int i = 0; i < prompt_len; ++i) request.mutable_token_ids()->add_ids(100 + (seed * 7 + i * 13) % 300);
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  return request;
}

ClientStream::ClientStream(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request) {
  thread_ = std::thread([this, &stub, request] {
    const auto reader = stub.GenerateStream(&context_, request);
    v1::GenerateChunk chunk;
    while (reader->Read(&chunk)) {
      std::lock_guard<std::mutex> lock(mutex_);
      token_ids_.insert(token_ids_.end(), chunk.token_ids().begin(), chunk.token_ids().end());
      changed_.notify_all();
    }
    const grpc::Status status = reader->Finish();
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    status_ = status;
    changed_.notify_all();
  });
}

ClientStream::~ClientStream() {
  Cancel();
  thread_.join();
}

bool ClientStream::WaitForTokens(size_t count) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, kPatience, [&] { return ended_ || token_ids_.size() >= count; });
  return token_ids_.size() >= count;
}

grpc::Status ClientStream::End() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [&] { return ended_; })) {
    return {grpc::StatusCode::UNKNOWN, "the stream has not ended within 60 s"};
  }
  return status_;
}

std::vector<int32_t> ClientStream::token_ids() {
  std::lock_guard<std::mutex> lock(mutex_);
  return token_ids_;
}

RankCluster::RankCluster(const ClusterOptions& options)
    : options_(options),
      grpc_port_(FreePort()),
      metrics_port_(FreePort()),
      leader_port_(FreePort()),
      token_file_(testing::TempDir() + "worker-token-" + std::to_string(leader_port_)) {
  std::ofstream(token_file_) << "the-secret-of-this-test-" << leader_port_ << "-0123456789\n";
  std::vector<std::string> arguments = {FOREDRAFT_BINARY, "serve", "--config",
                                        "deploy/configs/abacus-cpu.yaml"};
  for (const std::string& set : Sets()) arguments.insert(arguments.end(), {"--set", set});
  leader_ = std::make_unique<ChildProcess>(arguments);
  remotes_.resize(options.ranks - options.local_workers);
  for (int rank = options.local_workers; rank < options.ranks - options.absent_ranks; ++rank)
    StartRemote(rank);
  channel_ = grpc::CreateChannel(Address(grpc_port_), grpc::InsecureChannelCredentials());
  stub_ = v1::GenerationService::NewStub(channel_);
  admin_ = v1::AdminService::NewStub(channel_);
  if (!options.wait_until_serving) return;
  EXPECT_TRUE(WaitServing()) << leader_->Stderr();
}

RankCluster::~RankCluster() {
  unlink(token_file_.c_str());
  for (const auto& [pid, line] : Processes()) {
    if (line.find(Address(leader_port_)) != std::string::npos) kill(pid, SIGKILL);
  }
  for (Remote& remote : remotes_) {
    if (remote.process != nullptr) remote.process->Signal(SIGKILL);
  }
}

std::vector<std::string> RankCluster::Sets() const {
  std::vector<std::string> sets = {
      "server.grpc_address=" + Address(grpc_port_),
      "server.metrics_address=" + Address(metrics_port_),
      "server.http_address=127.0.0.1:0",
      (options_.share_requests ? "parallel.attention_tp=" : "parallel.attention_dp=") +
          std::to_string(options_.ranks),
      "parallel.moe_ep=" + std::to_string(options_.ranks),
      "parallel.leader_address=" + Address(leader_port_),
      "parallel.local_workers=" + std::to_string(options_.local_workers),
      "parallel.token_file=" + token_file_,
      "parallel.heartbeat_timeout_s=" + std::to_string(kHeartbeatTimeoutS),
      "parallel.restart=" + std::string(options_.restart_group ? "group" : "exit"),
      "cpu.threads=1",
      "max_batch_size=4",
      "kv_cache_config.max_tokens=16384",
  };
  sets.insert(sets.end(), options_.sets.begin(), options_.sets.end());
  return sets;
}

void RankCluster::StartRemote(int rank) {
  Remote& remote = remotes_.at(rank - options_.local_workers);
  remote.process.reset();
  remote.proxy = std::make_unique<TcpProxy>(leader_port_);
  remote.process = std::make_unique<ChildProcess>(WorkerArguments(rank, remote.proxy->port(), {}));
}

RunResult RankCluster::RunWorker(int rank, const std::vector<std::string>& sets) {
  return RunProgram(WorkerArguments(rank, leader_port_, sets));
}

std::vector<std::string> RankCluster::WorkerArguments(int rank, int port,
                                                      const std::vector<std::string>& sets) const {
  std::vector<std::string> arguments = {
      FOREDRAFT_BINARY,     "worker",   "--config",   "deploy/configs/abacus-cpu.yaml", "--rank",
      std::to_string(rank), "--leader", Address(port)};
  for (const std::string& set : Sets()) arguments.insert(arguments.end(), {"--set", set});
  for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
  return arguments;
}

pid_t RankCluster::WorkerPid(int rank) {
  const std::string wanted = "foredraft worker --config /dev/stdin --leader " + Address(leader_port_) +
                             " --rank " + std::to_string(rank) + " ";
  const auto deadline = steady_clock::now() + kPatience;
  while (steady_clock::now() < deadline) {
    for (const auto& [pid, line] : Processes()) {
      if (line.rfind(wanted, 0) == 0) return pid;
    }
    Tick();
  }
  ADD_FAILURE() << "no worker of rank " << rank;
  return -1;
}

std::string RankCluster::LeftRunning(double seconds) {
  const auto deadline = steady_clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1000));
  while (true) {
    std::string left;
    for (const auto& [pid, line] : Processes()) {
      // A zombie has an empty command line.
      if (line.find(Address(leader_port_)) != std::string::npos)
        left += std::to_string(pid) + " " + line + "\n";
    }
    if (left.empty() || steady_clock::now() > deadline) return left;
    Tick();
  }
}

double RankCluster::Metric(const std::string& name) {
  std::istringstream page(HttpPage(metrics_port_));
  double sum = -1;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("foredraft_" + name + "{", 0) != 0) continue;
    sum = std::max(sum, 0.0) + std::stod(line.substr(line.rfind(' ')));
  }
  return sum;
}

bool RankCluster::WaitServing() {
  const auto deadline = steady_clock::now() + kPatience;
  while (steady_clock::now() < deadline) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
    v1::GetLoadResponse load;
    if (admin_->GetLoad(&context, {}, &load).ok() && load.state() == "serving") return true;
    Tick();
  }
  return false;
}

}  // namespace foredraft
