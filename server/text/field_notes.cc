#include "server/text/field_notes.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/fnv.h"

namespace foredraft {
namespace {

// The most further names that are counted, so that a stranger's names take no more memory.
constexpr size_t kMostFurther = 1024;

}  // namespace

std::string NoteName(std::string_view path) {
  std::string name;
  bool is_index = false;
  for (size_t at = 0; at < path.size() && name.size() < FieldNotes::kMostNameBytes; ++at) {
    const auto byte = static_cast<unsigned char>(path[at]);
    if (is_index && absl::ascii_isdigit(byte)) continue;
    is_index = byte == '[';
    const bool is_plain =
        absl::ascii_isalnum(byte) || byte == '_' || byte == '.' || byte == '[' || byte == ']' || byte == '-';
    name += is_plain ? static_cast<char>(byte) : '?';
  }
  return name;
}

void FieldNotes::Add(std::string_view path, Kind kind) {
  std::string name = NoteName(path);
  const auto same = [&name](const Note& note) { return note.name == name; };
  if (std::any_of(kept_.begin(), kept_.end(), same)) return;
  if (kept_.size() < kMostNames) {
    kept_.push_back({.name = std::move(name), .kind = kind});
  } else if (further_.size() >= kMostFurther || !further_.insert(Fnv1a(name)).second) {
    return;
  }
  ++counts_[static_cast<size_t>(kind)];
}

std::string FieldNotes::Header() const {
  std::string header;
  for (const Note& note : kept_) absl::StrAppend(&header, header.empty() ? "" : ", ", note.name);
  const int further = count() - static_cast<int>(kept_.size());
  if (further > 0) absl::StrAppend(&header, ", +", further);
  return header;
}

}  // namespace foredraft
