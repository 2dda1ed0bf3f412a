#include "tests/e2e/daemon_fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

namespace foredraft {
namespace {

std::vector<std::string> Arguments(const std::vector<std::string>& sets, const std::string& config,
                                   const std::vector<std::string>& flags, const std::string& shell) {
  std::vector<std::string> arguments;
  if (!shell.empty()) arguments = {"/bin/sh", "-c", shell + " && exec \"$0\" \"$@\""};
  arguments.insert(arguments.end(), {FOREDRAFT_BINARY, "serve"});
  if (!std::filesystem::is_directory(config)) arguments.push_back("--config");
  arguments.push_back(config);
  for (const std::string& set :
       {std::string("server.grpc_address=127.0.0.1:0"), std::string("server.metrics_address=127.0.0.1:0"),
        std::string("server.http_address=127.0.0.1:0"), std::string("server.admin_address=none"),
        std::string("cpu.pin=false")}) {
    arguments.insert(arguments.end(), {"--set", set});
  }
  for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return arguments;
}

}  // namespace

RunResult Foredraft(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), FOREDRAFT_BINARY);
  return RunProgram(arguments);
}

void ExpectEnds(const std::vector<Usage>& usages) {
  for (const Usage& usage : usages) {
    const RunResult result = Foredraft(usage.arguments);
    EXPECT_EQ(result.exit_code, usage.exit_code) << testing::PrintToString(usage.arguments) << "\n"
                                                 << result.err;
    EXPECT_THAT(result.err, testing::HasSubstr(usage.says)) << testing::PrintToString(usage.arguments);
    if (usage.exit_code == 1) {
      EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << "one line: " << result.err;
    }
  }
}

std::vector<std::string> LongRequest() {
  return {"--prompt", "1 2 3", "--ignore-eos", "--max-tokens", "4000", "--json"};
}

std::string TestDir(const std::string& name) {
  const std::string dir = testing::TempDir() + "/foredraft_e2e_" + std::to_string(getpid()) + "_" + name;
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  return dir;
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  const size_t colon = address.rfind(':');
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0)
    return "";
  const int fd = socket(found->ai_family, found->ai_socktype, 0);
  std::string page;
  if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    if (write(fd, request.data(), request.size()) > 0) {
      char buffer[4096];
      for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) > 0;) page.append(buffer, count);
    }
  }
  close(fd);
  freeaddrinfo(found);
  return page;
}

Daemon::Daemon(const std::vector<std::string>& sets, const std::string& config,
               const std::vector<std::string>& flags, const std::string& shell)
    : process_(Arguments(sets, config, flags, shell)) {
  static const std::regex kServing(
      R"(serving  grpc (\S+)   metrics http://(\S+)/metrics   openai https?://(\S+)/v1)");
  std::smatch match;
  const bool serving = process_.WaitForStderr("/v1");
  const std::string screen = process_.Stderr();
  EXPECT_TRUE(serving && std::regex_search(screen, match, kServing)) << screen;
  if (match.size() == 4) {
    grpc_address_ = match[1];
    metrics_address_ = match[2];
    http_address_ = match[3];
  }
}

RunResult Daemon::Generate(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), {"generate", "--server", grpc_address_});
  return Foredraft(arguments);
}

double Daemon::Metric(const std::string& name, const std::string& label) const {
  std::istringstream page(HttpGet(metrics_address_, "/metrics"));
  double sum = -1;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("foredraft_" + name + "{", 0) != 0 || line.find(label) == std::string::npos) continue;
    sum = std::max(sum, 0.0) + std::stod(line.substr(line.rfind(' ')));
  }
  return sum;
}

bool Daemon::EventuallyMetric(const std::string& name, const std::string& label, double value) const {
  for (int tick = 0; tick < 3000; ++tick) {
    if (Metric(name, label) == value) return true;
    poll(nullptr, 0, 10);
  }
  return false;
}

}  // namespace foredraft
