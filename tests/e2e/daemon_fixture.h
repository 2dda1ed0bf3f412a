#ifndef FOREDRAFT_TESTS_E2E_DAEMON_FIXTURE_H_
#define FOREDRAFT_TESTS_E2E_DAEMON_FIXTURE_H_

// The real binary with the model that ships, on ports of its own choice.

#include <string>
#include <vector>

#include "tests/e2e/child_process.h"

namespace foredraft {

inline constexpr char kConfig[] = "deploy/configs/abacus-cpu.yaml";
inline constexpr char kModel[] = "deploy/models/abacus";

// Runs a subcommand to its end.
RunResult Foredraft(std::vector<std::string> arguments);

// Arguments of `generate` for an answer of 4,000 tokens.
std::vector<std::string> LongRequest();

// An empty folder of this process.
std::string TestDir(const std::string& name);

void WriteText(const std::string& path, const std::string& text);

// Head and body; empty where nobody answers.
std::string HttpGet(const std::string& address, const std::string& path);

// `foredraft serve`, ready.
class Daemon {
 public:
  explicit Daemon(const std::vector<std::string>& sets = {}, const std::string& config = kConfig);

  ChildProcess& process() { return process_; }
  const std::string& grpc_address() const { return grpc_address_; }

  RunResult Generate(std::vector<std::string> arguments) const;
  // The sum over all label sets whose line has `label`; -1 without one.
  double Metric(const std::string& name, const std::string& label = "") const;
  bool EventuallyMetric(const std::string& name, const std::string& label, double value) const;

 private:
  ChildProcess process_;
  std::string grpc_address_;
  std::string metrics_address_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_E2E_DAEMON_FIXTURE_H_
