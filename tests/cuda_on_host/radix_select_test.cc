// The radix select of sample's filters against a sort.

#include "kernels/cuda/common/radix_select.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "tests/ops/op_rig.h"

namespace foredraft::cuda {
namespace {

using Element = std::pair<uint64_t, uint64_t>;  // key, weight

struct SelectParams {
  unsigned long long* found;
  const unsigned long long* keys;  // [count]
  const unsigned long long* weights;
  int32_t count;
  unsigned long long target;
};

template <int kThreads>
__global__ void __launch_bounds__(kThreads) SelectOne(const __grid_constant__ SelectParams p) {
  GridDependencySync();
  const auto for_each = [&](const auto& visit) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < p.count; i += kThreads) {
      visit(p.keys[i], p.weights[i]);
    }
  };
  const unsigned long long found = SelectKey<kThreads>(SharedStorage<SelectShared>(), p.target, for_each);
  if (threadIdx.x == 0) *p.found = found;
}

template <int kThreads>
uint64_t SelectedBy(OpRig& rig, const std::vector<Element>& elements, uint64_t target) {
  std::vector<unsigned long long> keys, weights;
  for (const Element& element : elements) {
    keys.push_back(element.first);
    weights.push_back(element.second);
  }
  auto* const found = rig.Poisoned<unsigned long long>(1);
  const SelectParams params = {found, rig.Put(keys), rig.Put(weights), static_cast<int32_t>(keys.size()),
                               target};
  Launch(rig.stream(), SelectOne<kThreads>,
         {.grid = dim3(1), .block = dim3(kThreads), .shared_bytes = sizeof(SelectShared)}, params);
  return rig.Get(found, 1)[0];
}

// By a thread for each bin, as sample's, and by more, as select_entries'.
uint64_t Selected(OpRig& rig, const std::vector<Element>& elements, uint64_t target) {
  const uint64_t selected = SelectedBy<kSelectThreads>(rig, elements, target);
  EXPECT_EQ((SelectedBy<4 * kSelectThreads>(rig, elements, target)), selected);
  return selected;
}

struct KeyCase {
  const char* name;
  int count;
  uint64_t (*key)(Noise& noise, int i);
};

uint64_t Random64(Noise& noise) {
  return static_cast<uint64_t>(noise.Int(0, 0x7fffffff)) << 33 ^
         static_cast<uint64_t>(noise.Int(1, 0x7fffffff));
}

const KeyCase kKeyCases[] = {
    {"one", 1, [](Noise& noise, int) { return Random64(noise); }},
    {"any bits", 700, [](Noise& noise, int) { return Random64(noise); }},
    {"the low bits", 500, [](Noise&, int i) { return uint64_t{0x8000000100000000} + i; }},
    {"equal digits in between", 300, [](Noise&, int i) { return uint64_t(i % 20 + 1) << 50 | uint64_t(i); }},
    {"most alike", 300, [](Noise&, int i) { return i == 0 ? uint64_t{1} << 63 : uint64_t(i); }},
};

// Weights whose low words overflow when they are added: every carry counts, as targets are exact.
TEST(RadixSelect, FindsTheKeyThatReachesTheTarget) {
  OpRig rig({}, RunMode::kEager);
  for (const KeyCase& c : kKeyCases) {
    Noise noise(17);
    std::vector<Element> elements(c.count);
    for (int i = 0; i < c.count; ++i) {
      elements[i] = {c.key(noise, i), 0xfffffffful + uint64_t(noise.Int(0, 3)) * 0x80000001ul};
    }
    std::vector<Element> sorted = elements;
    std::sort(sorted.rbegin(), sorted.rend());
    uint64_t sum = 0;
    for (int i = 0; i < c.count; ++i) {
      const uint64_t before = sum;
      sum += sorted[i].second;
      if (i % 37 != 0 && i != c.count - 1) continue;
      EXPECT_EQ(Selected(rig, elements, before + 1), sorted[i].first) << c.name << ", element " << i;
      EXPECT_EQ(Selected(rig, elements, sum), sorted[i].first) << c.name << ", element " << i;
    }
    EXPECT_EQ(Selected(rig, elements, sum + 1), 0u) << c.name << ": the weights fall short";
  }
  EXPECT_EQ(Selected(rig, {{5, 0}}, 1), 0u) << "no weight";
}

}  // namespace
}  // namespace foredraft::cuda
