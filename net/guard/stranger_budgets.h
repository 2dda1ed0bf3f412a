#pragma once

// What the strangers of an address may send together (frame_budget.h). Not thread-safe.

#include <string>
#include <unordered_map>

#include "net/guard/frame_budget.h"

namespace foredraft {

class StrangerBudgets {
 public:
  // The budget of a stranger's connection until Leave.
  StreamBudget& Enter(const std::string& address, GuardTime now) {
    Address& entry = addresses_.try_emplace(address, Address{StreamBudget(kAddressRates, now)}).first->second;
    ++entry.connections;
    return entry.budget;
  }
  void Leave(const std::string& address) { --addresses_.at(address).connections; }

  // Forgets addresses without strangers once their budget is full again, not before: otherwise an attacker
  // could get a fresh budget by closing all connections.
  void Sweep(GuardTime now) {
    std::erase_if(addresses_, [now](const auto& entry) {
      return entry.second.connections == 0 && entry.second.budget.IsFull(now);
    });
  }

 private:
  struct Address {
    StreamBudget budget;
    int connections = 0;
  };
  std::unordered_map<std::string, Address> addresses_;
};

}  // namespace foredraft
