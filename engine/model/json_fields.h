#pragma once

// Typed, range-checked access to the fields of one JSON object. The first fault is kept, later ones are
// dropped, so callers read fields one per line and check status() once. null counts as absent. Not
// thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace foredraft {

// Caps on config.json's numbers, far above every known model. They keep all products of sizes inside int64,
// rows of fused weights inside int32, and bound the memory that a hostile file can demand.
inline constexpr int64_t kMaxWidth = 1 << 20;  // any feature dimension
inline constexpr int64_t kMaxFused = 1 << 24;  // heads times head width
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxExperts = 4096;
inline constexpr int64_t kMaxModules = 64;

class JsonFields {
 public:
  // `object` outlives this. `path` is put before field names in errors: "" or "rope_scaling.".
  JsonFields(const nlohmann::json& object, std::string file, std::string path)
      : object_(object), file_(std::move(file)), path_(std::move(path)) {}

  // Null where absent.
  const nlohmann::json* Find(const char* field) const;
  // True also for a field that is null.
  bool Has(const char* field) const { return object_.contains(field); }

  int RequiredInt(const char* field, int64_t low, int64_t high);
  int OptionalInt(const char* field, int fallback, int64_t low, int64_t high);
  double OptionalDouble(const char* field, double fallback, double low, double high);
  double RequiredDouble(const char* field, double low, double high);
  bool OptionalBool(const char* field, bool fallback);
  // Refuses any value except `allowed`. The field may be absent: `allowed` is also its default.
  void AllowOnly(const char* field, const char* allowed);
  // An id or a list of ids; -1 entries never appear. Absent = empty.
  std::vector<int> Ids(const char* field, int64_t high);

  // Records a fault: "<file>: <path><field>: <value>, allowed <allowed>".
  void Refuse(const char* field, const std::string& value, const std::string& allowed);
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

  const absl::Status& status() const { return status_; }
  const std::string& file() const { return file_; }
  const std::string& path() const { return path_; }

 private:
  const nlohmann::json& object_;
  const std::string file_;
  const std::string path_;
  absl::Status status_;
};

}  // namespace foredraft
