#pragma once

// How long the answer to a wrong token is held back, so that guessing is slow and a typing error costs
// nothing. A right token is never delayed, whoever shares its address. Thread-safe.

#include <chrono>
#include <map>
#include <mutex>
#include <string>

namespace foredraft {

class GuessDelay {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kFreeGuesses = 10;  // of one client, in kWindow
  static constexpr std::chrono::seconds kWindow{60};
  static constexpr std::chrono::milliseconds kDelay{1000};

  // Counts a wrong token of `client` (ClientOf); returns how long to hold its answer back.
  std::chrono::milliseconds Note(const std::string& client, Clock::time_point now) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (guesses_.size() >= kMostClients && !guesses_.contains(client)) {
      std::erase_if(guesses_, [now](const auto& entry) { return now - entry.second.begin > kWindow; });
      if (guesses_.size() >= kMostClients) return kDelay;  // guesses come from everywhere
    }
    Guesses& guesses = guesses_[client];
    if (now - guesses.begin > kWindow) guesses = {.begin = now, .count = 0};
    return ++guesses.count > kFreeGuesses ? kDelay : std::chrono::milliseconds(0);
  }

 private:
  static constexpr size_t kMostClients = 4096;
  struct Guesses {
    Clock::time_point begin;
    int count = 0;
  };

  std::mutex mutex_;
  std::map<std::string, Guesses> guesses_;  // guarded by mutex_
};

}  // namespace foredraft
