#pragma once

// Ranks as threads of one process, on TestBackend(). Each has a device and a communicator of its own; on the
// CPU they connect over loopback, as separate processes do.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "engine/comm/communicator_factory.h"
#include "tests/engine/comm/in_process_rendezvous.h"
#include "tests/ops/test_backend.h"

namespace foredraft {

struct RankParts {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> comm;
};

// Runs `body` for all ranks concurrently, each on a thread of its own.
inline void ForEachRank(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&body, rank] {
      UseDeviceOfRank(rank);
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The first failure, if any. `kernels`: isa and int8_inputs of the devices; `shared_memory`: as
// CommunicatorOptions'.
inline absl::StatusOr<std::vector<RankParts>> TryConnectRanks(int ranks,
                                                              std::chrono::milliseconds step_timeout,
                                                              std::chrono::seconds connect_timeout,
                                                              const DeviceOptions& kernels = {},
                                                              bool shared_memory = true) {
  InProcessRendezvous store;
  std::vector<RankParts> parts(ranks);
  std::vector<absl::Status> statuses(ranks);
  ForEachRank(ranks, [&](int rank) {
    auto device =
        CreateDevice(TestBackend(), {.threads = 1, .isa = kernels.isa, .int8_inputs = kernels.int8_inputs});
    CHECK(device.ok()) << device.status().ToString();
    parts[rank].device = *std::move(device);
    auto comm = CreateCommunicator(
        {.rank = rank,
         .size = ranks,
         .backend = std::string(TestBackend()) == NameOf(Backend::kCuda) ? Backend::kCuda : Backend::kCpu,
         .step_timeout = step_timeout,
         .connect_timeout = connect_timeout,
         .shared_memory = shared_memory},
        *parts[rank].device, &store);
    if (comm.ok()) {
      parts[rank].comm = *std::move(comm);
    } else {
      statuses[rank] = comm.status();
    }
  });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return parts;
}

inline std::vector<RankParts> ConnectRanks(int ranks, std::chrono::milliseconds step_timeout,
                                           const DeviceOptions& kernels = {}, bool shared_memory = true) {
  auto parts = TryConnectRanks(ranks, step_timeout, std::chrono::seconds(60), kernels, shared_memory);
  CHECK(parts.ok()) << parts.status().ToString();
  return *std::move(parts);
}

}  // namespace foredraft
