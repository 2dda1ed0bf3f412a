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
  // CPU: threads of each rank. Where every thread of every rank has a core, a rank spins a while before it
  // sleeps.
  int threads = 1;
  // Exchanges of a step go through shared memory where all ranks can reach each other's memory; on GPUs only
  // exchanges of few rows do.
  bool shared_memory = true;
};

}  // namespace foredraft
