#ifndef FOREDRAFT_TESTS_ENGINE_COMM_RANK_THREADS_H_
#define FOREDRAFT_TESTS_ENGINE_COMM_RANK_THREADS_H_

// Ranks as threads of one process. Each has a device and a communicator of its own; they connect over
// loopback, as separate processes do.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/check.h"
#include "engine/comm/communicator_factory.h"
#include "tests/engine/comm/in_process_rendezvous.h"

namespace foredraft {

struct RankParts {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> comm;
};

// Runs `body` for all ranks concurrently, each on a thread of its own.
inline void ForEachRank(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<RankParts> ConnectRanks(int ranks, std::chrono::milliseconds step_timeout) {
  InProcessRendezvous store;
  std::vector<RankParts> parts(ranks);
  ForEachRank(ranks, [&](int rank) {
    auto device = CreateDevice("cpu", {.threads = 1});
    CHECK(device.ok()) << device.status().ToString();
    const CommunicatorOptions options = {.rank = rank, .size = ranks, .step_timeout = step_timeout};
    auto comm = CreateCommunicator(options, **device, &store);
    CHECK(comm.ok()) << comm.status().ToString();
    parts[rank] = {*std::move(device), *std::move(comm)};
  });
  return parts;
}

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_ENGINE_COMM_RANK_THREADS_H_
