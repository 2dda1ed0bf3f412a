#pragma once

// 64 concurrent clients that cancel, run into deadlines and drop their connections at random, and check every
// token they get. For any server with known answers.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "foredraft/v1/generation.pb.h"

namespace foredraft {

inline constexpr int kSoakClients = 64;

struct SoakRequest {
  v1::GenerateRequest request;
  std::vector<int32_t> token_ids;  // of the whole answer
};

struct SoakReport {
  int finished = 0;
  int cut_short = 0;                // by cancel, deadline or disconnect
  std::vector<std::string> faults;  // wrong or missing tokens, wrong accounting, an unexpected status
  int64_t middle_bytes = 0;         // resident, half-way
  int64_t end_bytes = 0;
};

// 10 s; 60 s where FOREDRAFT_FULL is set.
std::chrono::seconds SoakLength();

SoakReport RunSoak(const std::string& address, const std::vector<SoakRequest>& requests, uint64_t seed);

// Expects a report without faults.
void ExpectSoakPassed(const SoakReport& report);

}  // namespace foredraft
