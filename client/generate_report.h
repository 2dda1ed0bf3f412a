#ifndef FOREDRAFT_CLIENT_GENERATE_REPORT_H_
#define FOREDRAFT_CLIENT_GENERATE_REPORT_H_

// A request's chunks joined, as `foredraft generate` reports them.

#include <chrono>
#include <string>

#include "foredraft/v1/generation.pb.h"

namespace foredraft {

class GenerateReport {
 public:
  void Add(const v1::GenerateChunk& chunk);
  // After the last chunk. `reason` stands in where no chunk gave a finish reason: "cancelled", "deadline", or
  // "" for an error.
  void End(const std::string& reason);

  const std::string& finish_reason() const { return whole_.finish_reason(); }
  bool has_text() const { return !whole_.text().empty(); }
  std::string Json() const;     // README.md's object, on one line
  std::string Summary() const;  // for people

 private:
  v1::GenerateChunk whole_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace foredraft

#endif  // FOREDRAFT_CLIENT_GENERATE_REPORT_H_
