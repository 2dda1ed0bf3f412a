#include "scheduler/plan.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "scheduler/plan_fields.h"

namespace foredraft {
namespace {

// Writes " name value" for every number that is not 0, and only the count of tokens and masks.
class FieldText : public FieldVisitor<FieldText> {
 public:
  FieldText() : FieldVisitor(limits_) {}

  std::string Take() { return std::exchange(text_, {}); }

  template <class T>
  void Number(const char* name, const T& value, Range, int64_t) {
    if (in_list_ > 0) {
      --in_list_;
      absl::StrAppend(&text_, " ", static_cast<int64_t>(value));
    } else if (value != T()) {
      absl::StrAppend(&text_, " ", name, " ", static_cast<int64_t>(value));
    }
  }
  void Real(const char* name, double value, RealRange) {
    if (value != 0) absl::StrAppend(&text_, " ", name, " ", value);
  }
  template <class List>
  void Count(const char* name, const List& list, Range) {
    if (!std::is_integral_v<typename List::value_type> || list.empty()) return;
    in_list_ = list.size();
    absl::StrAppend(&text_, " ", name, ":");
  }
  void Begin(const char* name) { absl::StrAppend(&text_, " ", name, " {"); }
  void End() {
    if (text_.ends_with('{')) {
      text_.resize(text_.rfind(' '));  // the brace
      text_.resize(text_.rfind(' '));  // and the name
    } else {
      absl::StrAppend(&text_, " }");
    }
  }
  template <class List>
  void Tokens(const char* name, const List& ids, Range) {
    if (!ids.empty()) absl::StrAppend(&text_, " ", name, " [", ids.size(), "]");
  }
  using FieldVisitor::operator();
  void operator()(const char* name, const std::vector<std::shared_ptr<const TokenMask>>& masks, Range) {
    if (!masks.empty()) absl::StrAppend(&text_, " ", name, " [", masks.size(), "]");
  }

 private:
  static const PlanLimits limits_;
  std::string text_;
  size_t in_list_ = 0;  // elements to come
};

const PlanLimits FieldText::limits_;

}  // namespace

void Executor::Refuse(const absl::Status& why) { CHECK(false) << why; }

bool HasPrefill(const IterationPlan& plan) {
  return std::any_of(plan.prefill_rows.begin(), plan.prefill_rows.end(),
                     [](int32_t rows) { return rows > 0; });
}

std::string IterationPlan::DebugString() const {
  FieldText text;
  VisitFields(text, *this);
  const std::string shared = text.Take();
  std::vector<std::string> lines;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    VisitFields(text, ranks[rank]);
    lines.push_back(absl::StrCat("plan", shared, ", rank ", rank, ":", text.Take()));
  }
  return absl::StrJoin(lines, "\n");
}

bool IsEmpty(const IterationPlan& plan) {
  return std::all_of(plan.ranks.begin(), plan.ranks.end(), [](const RankPlan& rank) {
    return rank.releases.empty() && rank.dropped_images.empty() && rank.swaps_out.empty() &&
           rank.swaps_in.empty() && rank.admissions.empty() && rank.block_table_deltas.empty() &&
           rank.prefill_chunks.empty() && rank.live_slots.empty();
  });
}

}  // namespace foredraft
