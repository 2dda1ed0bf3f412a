#pragma once

#include <chrono>
#include <string>

#include "config/config.h"

namespace foredraft {

struct CommunicatorOptions {
  int rank = 0;
  int size = 1;  // 1, 2, 4, 8
  Backend backend = Backend::kCpu;
  std::string interface = "lo";               // parallel.interface: carries the tensors
  std::chrono::milliseconds step_timeout{0};  // of every collective
  std::chrono::seconds connect_timeout{60};   // of forming the group
  // CPU: threads of each rank; where every one of all ranks has a core, a rank spins a while before it
  // sleeps.
  int threads = 1;
  // Exchanges of a step go through memory that ranks share, where all can reach each other's: on GPUs those
  // of few rows.
  bool shared_memory = true;
};

}  // namespace foredraft
