#include "ranks/plan_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <numeric>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/fnv.h"
#include "base/status_macros.h"
#include "ranks/range_check.h"
#include "scheduler/plan_fields.h"

namespace foredraft {
namespace {

constexpr int kVarintBytes = 10;

// Maps 0, -1, 1, -2... to 0, 1, 2, 3..., so that small numbers of either sign stay small.
uint64_t ZigZag(int64_t value) {
  return static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
}
int64_t UnZigZag(uint64_t value) { return static_cast<int64_t>(value >> 1 ^ -(value & 1)); }

const PlanLimits& NoLimits() {
  static const PlanLimits limits;
  return limits;
}

class FieldWriter : public FieldVisitor<FieldWriter> {
 public:
  FieldWriter() : FieldVisitor(NoLimits()) {}

  std::string bytes;

  template <class T>
  void Number(const char*, T value, Range, int64_t base) {
    const uint64_t distance = static_cast<uint64_t>(value) - static_cast<uint64_t>(base);
    Varint(ZigZag(static_cast<int64_t>(distance)));
  }
  template <class T>
  void Real(const char*, T value, RealRange) {
    const auto bits = std::bit_cast<std::array<char, sizeof(T)>>(value);
    bytes.append(bits.data(), bits.size());
  }
  template <class List>
  void Count(const char*, const List& list, Range) {
    Varint(list.size());
  }
  void Begin(const char*) {}
  void End() {}

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
    bytes.push_back(static_cast<char>(value));
  }
};

// Decodes fields. After the first fault it empties all further lists and leaves all further values as they
// were.
class FieldReader : public FieldVisitor<FieldReader> {
 public:
  FieldReader(absl::string_view bytes, const PlanLimits& limits) : FieldVisitor(limits), bytes_(bytes) {}

  // Called after the last field.
  absl::Status End(absl::string_view message) const {
    RETURN_IF_ERROR(fault_);
    return CheckRange(absl::StrCat(message, ": bytes after the last field"), bytes_.size(), 0, 0);
  }

  template <class T>
  void Number(const char* name, T& value, Range range, int64_t base) {
    uint64_t coded = 0;
    if (!Varint(name, coded)) return;
    const auto read =
        static_cast<int64_t>(static_cast<uint64_t>(base) + static_cast<uint64_t>(UnZigZag(coded)));
    if constexpr (std::is_same_v<T, bool>) range = {0, 1};
    if (read < range.lowest || read > range.highest) return Refuse(name, read, range.lowest, range.highest);
    value = static_cast<T>(read);
  }
  template <class T>
  void Real(const char* name, T& value, RealRange range) {
    std::array<char, sizeof(T)> bits{};
    if (!fault_.ok()) return;
    if (bytes_.size() < bits.size()) return EndsEarly(name);
    std::copy_n(bytes_.begin(), bits.size(), bits.begin());
    bytes_.remove_prefix(bits.size());
    const T read = std::bit_cast<T>(bits);
    if (!(read >= range.lowest && read <= range.highest)) {
      return Refuse(name, read, range.lowest, range.highest);
    }
    value = read;
  }
  template <class List>
  void Count(const char* name, List& list, Range range) {
    list.clear();
    uint64_t count = 0;
    if (!Varint(name, count)) return;
    if (count > bytes_.size()) return EndsEarly(name);  // an element has at least a byte
    const auto size = static_cast<int64_t>(count);
    if (size < range.lowest || size > range.highest) {
      return Refuse(absl::StrCat(name, " size"), size, range.lowest, range.highest);
    }
    list.resize(count);
  }
  void Begin(const char* name) { parts_.push_back(name); }
  void End() { parts_.pop_back(); }

 private:
  bool Varint(const char* name, uint64_t& value) {
    if (!fault_.ok()) return false;
    const size_t most = std::min<size_t>(bytes_.size(), kVarintBytes);
    for (size_t i = 0; i < most; ++i) {
      value |= static_cast<uint64_t>(bytes_[i] & 0x7f) << (7 * i);
      if ((bytes_[i] & 0x80) != 0) continue;
      bytes_.remove_prefix(i + 1);
      return true;
    }
    EndsEarly(name);
    return false;
  }
  std::string Path(absl::string_view name) const {
    return absl::StrCat(absl::StrJoin(parts_, "."), parts_.empty() ? "" : ".", name);
  }
  void EndsEarly(const char* name) {
    fault_ = absl::InvalidArgumentError(absl::StrCat(Path(name), ": the message ends there"));
  }
  template <class T, class Bound>
  void Refuse(absl::string_view name, T value, Bound lowest, Bound highest) {
    fault_ = RefuseField(Path(name), value, absl::StrCat(lowest, "..", highest));
  }

  absl::string_view bytes_;
  absl::Status fault_;
  std::vector<const char*> parts_;  // around the next field
};

class LayoutHash : public FieldVisitor<LayoutHash> {
 public:
  LayoutHash() : FieldVisitor(NoLimits()) {}

  uint64_t hash = kFnvOffset;

  template <class T>
  void Number(const char* name, const T&, Range, int64_t) {
    Add(absl::StrCat(name, " n", sizeof(T)));
  }
  template <class T>
  void Real(const char* name, const T&, RealRange) {
    Add(absl::StrCat(name, " r", sizeof(T)));
  }
  template <class List>
  void Count(const char* name, List& list, Range) {
    Add(absl::StrCat(name, " ["));
    list.resize(1);
  }
  void Begin(const char* name) { Add(absl::StrCat(name, " {")); }
  void End() { Add("}"); }

 private:
  void Add(const std::string& text) { hash = Fnv1a(std::string_view(text.data(), text.size() + 1), hash); }
};

// Checks the sums that the shared fields state for this rank, by which the engine lays out its rows.
absl::Status CheckSums(const IterationPlan& plan, int rank) {
  int64_t rows = 0;
  int64_t ended = 0;
  for (const PrefillChunk& chunk : plan.ranks[rank].prefill_chunks) {
    rows += static_cast<int64_t>(chunk.token_ids.size());
    ended += chunk.last ? 1 : 0;
  }
  RETURN_IF_ERROR(CheckEqual("prefill_rows of this rank", plan.prefill_rows[rank], rows));
  return CheckEqual("ended_prompts of this rank", plan.ended_prompts[rank], ended);
}

}  // namespace

std::string EncodePlan(const IterationPlan& plan, int rank) {
  FieldWriter writer;
  VisitFields(writer, plan);
  VisitFields(writer, plan.ranks[rank]);
  return std::move(writer.bytes);
}

absl::StatusOr<IterationPlan> DecodePlan(absl::string_view bytes, int rank, const PlanLimits& limits) {
  IterationPlan plan;
  plan.ranks.resize(limits.rank_count);
  FieldReader reader(bytes, limits);
  VisitFields(reader, plan);
  VisitFields(reader, plan.ranks[rank]);
  RETURN_IF_ERROR(reader.End("plan"));
  RETURN_IF_ERROR(CheckSums(plan, rank));
  return plan;
}

std::string EncodeResult(const RankResult& result) {
  FieldWriter writer;
  VisitFields(writer, result);
  return std::move(writer.bytes);
}

absl::StatusOr<RankResult> DecodeResult(absl::string_view bytes, const ExpectedResult& expected,
                                        const PlanLimits& limits) {
  RankResult result;
  FieldReader reader(bytes, limits);
  reader.plan.draft_len = expected.draft_len;
  reader("result", result);
  RETURN_IF_ERROR(reader.End("result"));
  if (result.number != expected.number) {
    return RefuseField("result.number", result.number, absl::StrCat(expected.number));
  }
  const std::vector<int32_t>& live = expected.live_slots;
  RETURN_IF_ERROR(CheckEqual("result.slots size", result.slots.size(), live.size()));
  for (size_t i = 0; i < live.size(); ++i) {
    RETURN_IF_ERROR(CheckEqual("result.slots.slot", result.slots[i].slot, live[i]));
  }
  return result;
}

int64_t LargestResult(const PlanLimits& limits) {
  constexpr int64_t kLogprob = (1 + kMaxLogprobs) * (kVarintBytes + 4) + kVarintBytes;
  const int64_t tokens = limits.max_draft_len + 2;
  const int64_t slot = 12 * kVarintBytes + tokens * (2 * kVarintBytes + 4 + kLogprob);
  return 64 + limits.slot_count * slot;
}

std::string PlanLayout() {
  LayoutHash layout;
  IterationPlan plan;
  RankPlan rank;
  RankResult result;
  VisitFields(layout, plan);
  VisitFields(layout, rank);
  VisitFields(layout, result);
  return absl::StrFormat("%08x", static_cast<uint32_t>(layout.hash ^ layout.hash >> 32));
}

}  // namespace foredraft
