#include "tests/golden/recorded_hashes.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace foredraft {

int RecordedHashes::RunAllTests(int argc, char** argv) {
  record_command_ = absl::StrCat(argv[0], " --record");
  ::testing::InitGoogleTest(&argc, argv);  // takes its own arguments
  for (int i = 1; i < argc; ++i) {
    CHECK(argv[i] == std::string_view("--record")) << argv[i] << ": unknown argument, allowed --record";
    recording_ = true;
  }
  std::ifstream file(path_);
  hashes_ = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!hashes_.is_object()) {
    CHECK(recording_) << path_ << ": not there or not JSON; the working directory is the repository's root";
    hashes_ = nlohmann::json::object();
  }
  const int result = RUN_ALL_TESTS();
  if (recording_ && result == 0) Save();
  return result;
}

void RecordedHashes::Expect(const std::string& group, const std::string& part, const std::string& name,
                            uint64_t hash) {
  const std::string full_name = absl::StrJoin({group, part, name}, ": ");
  const std::string computed = absl::StrFormat("%016x", hash);
  if (recording_ && taken_.insert(full_name).second) {
    hashes_[group][part][name] = computed;
    return;
  }
  const nlohmann::json* const recorded = Find({group, part, name});
  if (recorded != nullptr && *recorded == computed) return;
  ADD_FAILURE() << full_name << "\n  recorded: " << (recorded == nullptr ? "nothing" : recorded->dump())
                << "\n  computed: \"" << computed << "\""
                << "\n  If other bits are what the change is for: " << record_command_;
}

void RecordedHashes::ExpectNoOthers(const std::vector<std::string>& keys,
                                    const std::set<std::string>& members) {
  nlohmann::json* const recorded = Find(keys);
  if (recorded == nullptr) return;
  std::vector<std::string> others;
  for (const auto& [name, value] : recorded->items()) {
    if (!members.contains(name)) others.push_back(name);
  }
  for (const std::string& name : others) {
    if (recording_) {
      recorded->erase(name);
    } else {
      ADD_FAILURE() << absl::StrJoin(keys, ": ") << ": " << name << "\n  is recorded and was not computed"
                    << "\n  If it is meant to be gone: " << record_command_;
    }
  }
}

nlohmann::json* RecordedHashes::Find(const std::vector<std::string>& keys) {
  nlohmann::json* value = &hashes_;
  for (const std::string& key : keys) {
    const auto found = value->find(key);
    if (found == value->end()) return nullptr;
    value = &*found;
  }
  return value;
}

void RecordedHashes::Save() const {
  std::ofstream file(path_);
  file << hashes_.dump(1) << "\n";
  file.close();
  CHECK(file.good()) << "cannot write " << path_;
}

}  // namespace foredraft
