#pragma once

// Hashes of what a test binary computes, compared with those that a file of tests/golden records: they show
// that a change which should keep every bit does. The file is JSON, group -> part -> name -> hash; a group is
// what may differ between machines, such as an instruction path of the CPU. Run with --record, a binary
// replaces what it computes and leaves the rest of the file as it is.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace foredraft {

class RecordedHashes {
 public:
  // `path`: from the root of the repository, which is the working directory.
  explicit RecordedHashes(std::string path) : path_(std::move(path)) {}

  // The tests of this binary. Takes --record out of the arguments; the file is written only if all pass.
  int RunAllTests(int argc, char** argv);

  bool recording() const { return recording_; }
  bool Has(const std::string& group) const { return recording_ || hashes_.contains(group); }
  bool Has(const std::string& group, const std::string& part) const {
    return recording_ || (hashes_.contains(group) && hashes_.at(group).contains(part));
  }

  // Fails the test unless this is the recorded hash. While recording: unless every call of one run has the
  // same.
  void Expect(const std::string& group, const std::string& part, const std::string& name, uint64_t hash);

  // Fails the test where `keys` (a group; a group and a part) has other members than `members`. While
  // recording, removes those.
  void ExpectNoOthers(const std::vector<std::string>& keys, const std::set<std::string>& members);

 private:
  nlohmann::json* Find(const std::vector<std::string>& keys);  // null: not recorded
  void Save() const;

  const std::string path_;
  std::string record_command_;
  bool recording_ = false;
  nlohmann::json hashes_;
  std::set<std::string> taken_;  // names of what this run has recorded
};

}  // namespace foredraft
