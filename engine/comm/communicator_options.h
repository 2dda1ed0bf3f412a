#pragma once

#include <chrono>
#include <string>

#include "config/config.h"

namespace foredraft {

struct CommunicatorOptions {
  int rank = 0;
  int size = 1;                               // 1, 2, 4, 8
  Backend backend = Backend::kCpu;            // cpu: Gloo; cuda: NCCL
  std::string interface = "lo";               // parallel.interface: carries the tensors
  std::chrono::milliseconds step_timeout{0};  // of every collective
  std::chrono::seconds connect_timeout{60};   // of forming the group
};

}  // namespace foredraft
