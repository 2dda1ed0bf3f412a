#pragma once

// The parts of a list of fields (scheduler/plan_fields.h): ranges, the limits of a rank that they depend on,
// and the base class of visitors. Pure.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "grammar/token_mask.h"
#include "scheduler/cache_group_shape.h"
#include "scheduler/drafter_requirements.h"

namespace foredraft {

struct Range {
  int64_t lowest = std::numeric_limits<int64_t>::min();
  int64_t highest = std::numeric_limits<int64_t>::max();
};
// NaN is in no range.
struct RealRange {
  double lowest = 0;
  double highest = 0;
};
inline constexpr Range kAnyCount{0, std::numeric_limits<int32_t>::max()};
inline constexpr RealRange kFinite{std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max()};
inline constexpr RealRange kSeconds{0, 86'400};

// What configuration and model allow in the plans and results of a rank.
struct PlanLimits {
  int32_t rank_count = 1;
  int32_t vocab_size = std::numeric_limits<int32_t>::max();
  int32_t slot_count = 1;      // max_batch_size
  int32_t largest_bucket = 1;  // of batch_sizes
  int32_t max_num_tokens = 1;
  int32_t max_seq_len = 1;
  int32_t max_draft_len = 0;  // Kmax
  bool cuts_drafts = false;   // draft policy `confidence`
  DrafterRequirements drafter;
  std::vector<CacheGroupShape> groups = {CacheGroupShape()};

  // How many entries a slot's block table has.
  int64_t Entries(const CacheGroupShape& group) const {
    return group.BlocksFor(max_seq_len + max_draft_len + drafter.rows_ahead);
  }
  // The group, or the nearest one if `number` is out of range.
  const CacheGroupShape& group(int64_t number) const {
    return groups[std::clamp<int64_t>(number, 0, static_cast<int64_t>(groups.size()) - 1)];
  }
};

// Numbers of a plan that bound its own parts.
struct PlanScope {
  int32_t draft_len = 0;
  int32_t decode_bucket = 0;
  int64_t mask_count = 0;
};

// Breaks fields down for Derived, which has
//   Number(name, value, range, base)  an integer, flag or enum; `base`: a number that it is likely near to
//   Real(name, value, range)
//   Count(name, list, range)          before a list's elements; a reader gives the list its size
//   Begin(name), End()                around the fields of a part
template <class Derived>
class FieldVisitor {
 public:
  explicit FieldVisitor(const PlanLimits& limits) : limits(limits) {}

  const PlanLimits& limits;
  PlanScope plan;

  Range tokens() const { return {0, int64_t{limits.vocab_size} - 1}; }
  Range slots() const { return {0, int64_t{limits.slot_count} - 1}; }
  Range ranks() const { return {limits.rank_count, limits.rank_count}; }
  Range masks() const { return {0, plan.mask_count - 1}; }

  template <class T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) void operator()(const char* name, T& value,
                                                                       Range range = {}) {
    self().Number(name, value, range, /*base=*/0);
  }
  template <class T>
  requires std::is_floating_point_v<T>
  void operator()(const char* name, T& value, RealRange range) { self().Real(name, value, range); }
  template <class T>
  requires(std::is_class_v<T> && !requires { typename T::value_type; }) void operator()(const char* name,
                                                                                        T& part) {
    self().Begin(name);
    VisitFields(self(), part);
    self().End();
  }

  template <class List>
  requires std::is_integral_v<typename List::value_type>
  void operator()(const char* name, List& list, Range count, Range range = {}) {
    self().Count(name, list, count);
    int64_t last = 0;
    for (auto& value : list) {
      self().Number(name, value, range, last);
      last = static_cast<int64_t>(value);
    }
  }
  template <class List>
  requires std::is_floating_point_v<typename List::value_type>
  void operator()(const char* name, List& list, Range count, RealRange range) {
    self().Count(name, list, count);
    for (auto& value : list) self().Real(name, value, range);
  }
  template <class List>
  requires std::is_class_v<typename List::value_type>
  void operator()(const char* name, List& list, Range count) {
    self().Count(name, list, count);
    for (auto& part : list) VisitElement(name, part);
  }

  // Tokens of a request: DebugString must not show them.
  template <class List>
  void Tokens(const char* name, List& ids, Range count) {
    (*this)(name, ids, count, tokens());
  }
  // Entries of a block table, or blocks of a swapped sequence.
  template <class T>
  void BlockRun(T& part, int64_t lowest_block) {
    (*this)("group", part.group, Range{0, static_cast<int64_t>(limits.groups.size()) - 1});
    const CacheGroupShape& group = limits.group(part.group);
    (*this)("first_index", part.first_index, Range{0, limits.Entries(group)});
    (*this)("block_ids", part.block_ids, Range{0, limits.Entries(group) - part.first_index},
            Range{lowest_block, group.block_count - 1});
  }

 private:
  Derived& self() { return static_cast<Derived&>(*this); }

  template <class T>
  void VisitElement(const char* name, T& part) {
    (*this)(name, part);
  }
  void VisitElement(const char* name, const std::shared_ptr<const TokenMask>& mask) { (*this)(name, *mask); }
  void VisitElement(const char* name, std::shared_ptr<const TokenMask>& mask) {
    auto made = mask == nullptr ? std::make_shared<TokenMask>() : std::make_shared<TokenMask>(*mask);
    (*this)(name, *made);
    mask = std::move(made);
  }
};

}  // namespace foredraft
