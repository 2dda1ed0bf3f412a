#pragma once

// Collects every fault of a configuration, so that an operator can correct all of them at once.

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace foredraft {

class ConfigErrors {
 public:
  // `path`: the key at fault; empty where the fault is not a key's. OK is not added.
  void Add(std::string_view path, const absl::Status& error) {
    if (error.ok()) return;
    errors_.push_back(error);
    paths_.emplace(path);
  }

  bool empty() const { return errors_.empty(); }
  const std::vector<absl::Status>& all() const { return errors_; }
  // True if the key was refused: it then has its default, so no other key should be compared with it.
  bool Refused(std::string_view path) const { return paths_.contains(path); }

  // OK if there are no errors. Otherwise the first error, on one line with the number of further errors.
  absl::Status First() const {
    if (errors_.empty()) return absl::OkStatus();
    if (errors_.size() == 1) return errors_[0];
    return absl::Status(errors_[0].code(), absl::StrCat(errors_[0].message(), " (", errors_.size() - 1,
                                                        errors_.size() == 2 ? " more error" : " more errors",
                                                        ": foredraft check-config --explain lists all)"));
  }

 private:
  std::vector<absl::Status> errors_;
  std::set<std::string, std::less<>> paths_;
};

}  // namespace foredraft
