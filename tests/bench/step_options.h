#pragma once

// The options of step_bench (step_main.cc says what they mean) and its two reports.

#include <string>
#include <thread>
#include <vector>

namespace foredraft {

struct StepOptions {
  std::string backend = "cpu";
  std::string model;      // empty: the report's own
  std::vector<int> rows;  // ascending; empty: the report's own
  int context = 0;        // 0: the report's own
  bool markdown = false;
  // Options of backend cpu.
  std::vector<std::string> only = {"table", "dense", "ops", "prefill"};
  std::vector<int> prompts = {512, 4000};
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  int rounds = 5;
  std::string kv = "bf16";
  std::string isa = "auto";     // cpu.isa
  std::string inputs = "bf16";  // cpu.inputs
  int buffer_mb = 512;          // of the read bandwidth
  std::string command;          // as given
  // Options of a GPU.
  std::string gpu;
  std::string measured;
  std::string json;
  std::vector<std::string> how = {"eager", "graph", "unforked"};
  int ranks = 0;  // 0: by the model
  int attention_tp = 1;
  int moe_tp = 1;
  bool nccl = false;
  bool windows = false;
  bool kernels = false;
  bool quick = false;
};

// Each returns an exit status.
int RunCpuSteps(StepOptions options);
int RunGpuSteps(StepOptions options);

}  // namespace foredraft
