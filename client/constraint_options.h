#pragma once

// Options that say what an output must be.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "foredraft/v1/generation.pb.h"

namespace foredraft {

class ConstraintOptions {
 public:
  // Adds --json-schema, --json-object, --regex, --choice, --grammar and --structural-tag, one of which may be
  // given, and --compact, which goes with the first two and the last.
  void Add(CLI::App& command);
  // Sets nothing if no option was given. The daemon checks the contents. INVALID_ARGUMENT or NOT_FOUND name
  // the option and the file that cannot be read.
  absl::Status ApplyTo(v1::GenerateRequest& request) const;

 private:
  std::optional<std::string> json_schema_, regex_, grammar_, structural_tag_;
  std::vector<std::string> choices_;
  bool json_object_ = false, compact_ = false;
};

}  // namespace foredraft
