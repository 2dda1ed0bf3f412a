#include "server/api/name_log.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace foredraft {

void NameLog::Log(NotedWire wire, const FieldNotes& notes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const char* const wire_name = kNotedWires[static_cast<size_t>(wire)];
  for (const FieldNotes::Note& note : notes.kept()) {
    if (is_full_) return;
    if (!logged_.insert(absl::StrCat(wire_name, " ", note.name)).second) continue;
    is_full_ = logged_.size() == kMostNames;
    const char* const why = note.kind == FieldNotes::Kind::kUnknown ? "no such field is known"
                                                                    : "this model or daemon cannot follow it";
    LogLine(
        LogLevel::kInfo,
        absl::StrCat("ignored in requests of ", wire_name, ": ", note.name, ": ", why,
                     is_full_ ? "; further names are counted by foredraft_ignored_fields_total alone" : ""),
        {{"wire", wire_name}, {"field", note.name}});
  }
}

}  // namespace foredraft
