#pragma once

// The chunks of one request, joined, and what `foredraft generate` prints about them.

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "foredraft/v1/generation.pb.h"

namespace foredraft {

class GenerateReport {
 public:
  void Add(const v1::GenerateChunk& chunk);
  // Call after the last chunk. `reason` is the finish reason if no chunk had one: "cancelled", "deadline", or
  // "" for an error. The times are then those that this client measured, from the report's construction on.
  void End(const std::string& reason);

  const std::string& finish_reason() const { return whole_.finish_reason(); }
  bool has_text() const { return !whole_.text().empty() || !whole_.thinking().empty(); }
  std::set<int32_t> logprob_ids() const;  // every token of the logprobs
  // Sets the text of each id alone, which Json (as `token`) and LogprobsTable show with the logprobs.
  void SetTokenTexts(std::map<int32_t, std::string> texts) { token_texts_ = std::move(texts); }
  std::string Json() const;     // one object, on one line
  std::string Summary() const;  // for people
  // A row per token: its text, its logprob, and the likely tokens at its place. For people.
  std::string LogprobsTable() const;

 private:
  using Clock = std::chrono::steady_clock;

  v1::GenerateChunk whole_;
  std::map<int32_t, std::string> token_texts_;
  bool own_times_ = false;  // the timing is this client's
  const Clock::time_point start_ = Clock::now();
  Clock::time_point first_token_ = start_, last_token_ = start_;
};

}  // namespace foredraft
