#ifndef FOREDRAFT_CLIENT_GENERATE_REPORT_H_
#define FOREDRAFT_CLIENT_GENERATE_REPORT_H_

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
  // "" for an error.
  void End(const std::string& reason);

  const std::string& finish_reason() const { return whole_.finish_reason(); }
  bool has_text() const { return !whole_.text().empty(); }
  std::set<int32_t> logprob_ids() const;  // every token of the logprobs
  // Adds `token`, the text of each id alone, to the logprobs of Json.
  void SetTokenTexts(std::map<int32_t, std::string> texts) { token_texts_ = std::move(texts); }
  std::string Json() const;     // one object, on one line
  std::string Summary() const;  // for people

 private:
  v1::GenerateChunk whole_;
  std::map<int32_t, std::string> token_texts_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace foredraft

#endif  // FOREDRAFT_CLIENT_GENERATE_REPORT_H_
