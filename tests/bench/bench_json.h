#pragma once

// Measurements as JSON lines, an object each, written as soon as they are known: what a program measured
// before it was stopped is kept.

#include <fstream>
#include <string>

#include "base/check.h"
#include "nlohmann/json.hpp"

namespace foredraft {

class JsonLines {
 public:
  // Nothing is written if the path is empty.
  explicit JsonLines(const std::string& path) {
    if (path.empty()) return;
    out_.open(path);
    CHECK(out_.good()) << path << ": cannot be written";
  }

  void Add(const nlohmann::ordered_json& object) {
    if (out_.is_open()) out_ << object.dump() << std::endl;
  }

 private:
  std::ofstream out_;
};

}  // namespace foredraft
