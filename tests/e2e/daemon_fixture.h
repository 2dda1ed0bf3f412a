#pragma once

// The binary as a subprocess, serving abacus on ports that it chooses.

#include <string>
#include <vector>

#include "tests/e2e/child_process.h"

namespace foredraft {

inline constexpr char kConfig[] = "deploy/configs/abacus-cpu.yaml";
inline constexpr char kModel[] = "deploy/models/abacus";

// Runs a subcommand until it ends.
RunResult Foredraft(std::vector<std::string> arguments);

// A command line, how it ends and what stderr says of it.
struct Usage {
  std::vector<std::string> arguments;
  int exit_code;
  std::string says;
};
// A failure (exit code 1) is one line.
void ExpectEnds(const std::vector<Usage>& usages);

// Arguments of `generate` for 4,000 tokens.
std::vector<std::string> LongRequest();

// An empty folder for this test process.
std::string TestDir(const std::string& name);

void WriteText(const std::string& path, const std::string& text);

// Head and body of the response; empty if the connection fails.
std::string HttpGet(const std::string& address, const std::string& path);

// A `foredraft serve` that is ready.
class Daemon {
 public:
  // `config`: a file, or a model's directory. `flags` are further arguments of `serve`; `shell` is a command
  // of a shell before it, "ulimit -n 256".
  explicit Daemon(const std::vector<std::string>& sets = {}, const std::string& config = kConfig,
                  const std::vector<std::string>& flags = {}, const std::string& shell = "");

  ChildProcess& process() { return process_; }
  const std::string& grpc_address() const { return grpc_address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  const std::string& http_address() const { return http_address_; }

  RunResult Generate(std::vector<std::string> arguments) const;
  // The sum over all label sets that contain `label`; -1 if there is none.
  double Metric(const std::string& name, const std::string& label = "") const;
  // Waits up to 30 s until Metric returns `value`.
  bool EventuallyMetric(const std::string& name, const std::string& label, double value) const;

 private:
  ChildProcess process_;
  std::string grpc_address_;
  std::string metrics_address_;
  std::string http_address_;
};

}  // namespace foredraft
