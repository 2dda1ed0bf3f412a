#pragma once

// The parts of a request that had no effect: unknown fields, and hints that this model cannot follow. Clients
// find the names in a header of the answer, operators in the log and in a metric.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace foredraft {

// Whose requests are noted. kOther: the gRPC wires.
enum class NotedWire { kChat, kCompletions, kResponses, kMessages, kOther };
inline constexpr const char* kNotedWires[] = {"chat", "completions", "responses", "messages", "other"};
inline constexpr const char* kNoteKinds[] = {"unknown", "dropped"};  // by FieldNotes::Kind

// The header, or trailing metadata, of an answer that has FieldNotes::Header; absent where nothing is noted.
inline constexpr char kIgnoredHeader[] = "x-foredraft-ignored";

// Owner: one request; not thread-safe. A plain value.
class FieldNotes {
 public:
  enum class Kind { kUnknown, kDropped };
  struct Note {
    std::string name;
    Kind kind;
  };

  // `path` may have indices: "messages[3].timestamp" is noted as "messages[].timestamp", once for all
  // messages. At most kMostNames names are kept, each cut to kMostNameBytes; further ones are counted.
  void Unknown(std::string_view path) { Add(path, Kind::kUnknown); }
  void Dropped(std::string_view path) { Add(path, Kind::kDropped); }

  bool empty() const { return count() == 0; }
  // Different names, the kept ones included.
  int count() const { return counts_[0] + counts_[1]; }
  int count(Kind kind) const { return counts_[static_cast<size_t>(kind)]; }
  const std::vector<Note>& kept() const { return kept_; }
  // "verbosity, messages[].timestamp, +3"; empty where nothing is noted.
  std::string Header() const;

  static constexpr size_t kMostNames = 16, kMostNameBytes = 64;

 private:
  void Add(std::string_view path, Kind kind);

  std::vector<Note> kept_;
  std::array<int, 2> counts_ = {};         // by Kind
  absl::flat_hash_set<uint64_t> further_;  // hashes of names that are counted and not kept
};

// A path without the indices in its brackets, in letters, digits and _.[]- alone: every other character is
// shown as '?', so that it can end neither a header nor a line of the log.
std::string NoteName(std::string_view path);

}  // namespace foredraft
