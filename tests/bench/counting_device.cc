#include "tests/bench/counting_device.h"

#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace foredraft {
namespace {

struct Count {
  const Ops* ops = nullptr;  // of the real device; null without a CountingDevice
  int devices = 0;
  bool counting = false;
  CostContext shape;
  int32_t head_width = 0;
  OpTallies tallies;
  std::vector<std::function<void(Stream&)>>* recorded = nullptr;  // of the capture in progress
};
Count count;

template <class Params>
OpKind KindOf(const Params&) {
  return OpKind::kSmall;
}
OpKind KindOf(const GemmParams& p) { return p.weight.n == count.head_width ? OpKind::kHead : OpKind::kGemm; }
OpKind KindOf(const QueryGemmParams&) { return OpKind::kGemm; }
OpKind KindOf(const ArgmaxParams&) { return OpKind::kHead; }
OpKind KindOf(const GroupedGemmParams&) { return OpKind::kGroupedGemm; }
OpKind KindOf(const HeadGemmParams&) { return OpKind::kHeadGemm; }
OpKind KindOf(const MlaDecodeParams&) { return OpKind::kAttention; }
OpKind KindOf(const MlaPrefillParams&) { return OpKind::kAttention; }
OpKind KindOf(const RouteExpertsParams&) { return OpKind::kRouting; }
OpKind KindOf(const WindowAttentionParams&) { return OpKind::kAttention; }
OpKind KindOf(const BlockAttentionParams&) { return OpKind::kAttention; }
OpKind KindOf(const SelectEntriesParams&) { return OpKind::kAttention; }
OpKind KindOf(const HyperPreParams&) { return OpKind::kHyper; }
OpKind KindOf(const HyperPostParams&) { return OpKind::kHyper; }
OpKind KindOf(const HyperHeadParams&) { return OpKind::kHyper; }
OpKind KindOf(const BroadcastStreamsParams&) { return OpKind::kHyper; }
OpKind KindOf(const MeanStreamsParams&) { return OpKind::kHyper; }
OpKind KindOf(const CompressParams&) { return OpKind::kCompress; }
OpKind KindOf(const RouteSoftplusParams&) { return OpKind::kRouting; }
OpKind KindOf(const GroupRowsParams&) { return OpKind::kRouting; }
OpKind KindOf(const CombineExpertsParams&) { return OpKind::kRouting; }

template <class Params, auto op>
void Counted(Stream& stream, const Params& params) {
  if (count.recorded != nullptr) {
    count.recorded->push_back([params](Stream& replaying) { Counted<Params, op>(replaying, params); });
    (count.ops->*op)(stream, params);
    return;
  }
  if (!count.counting) {
    (count.ops->*op)(stream, params);
    return;
  }
  OpTally& tally = count.tallies[static_cast<int>(KindOf(params))];
  tally.cost += CostOf(params, count.shape);
  const auto start = std::chrono::steady_clock::now();
  (count.ops->*op)(stream, params);
  tally.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ++tally.calls;
}

// The real device's graph, and the ops that were captured into it.
class CountedGraph : public Graph {
 public:
  using Ops = std::vector<std::function<void(Stream&)>>;
  CountedGraph(std::unique_ptr<Graph> graph, Ops ops) : graph_(std::move(graph)), ops_(std::move(ops)) {}

  void Replay(Stream& stream) const override {
    if (!count.counting) return graph_->Replay(stream);
    for (const auto& op : ops_) op(stream);
  }
  size_t node_count() const override { return graph_->node_count(); }
  bool SameNodes(const Graph& other) const override {
    const auto* counted = dynamic_cast<const CountedGraph*>(&other);
    return counted != nullptr && graph_->SameNodes(*counted->graph_);
  }

 private:
  const std::unique_ptr<Graph> graph_;
  const Ops ops_;
};

}  // namespace

const char* OpKindName(OpKind kind) {
  static constexpr const char* kNames[] = {"gemm",       "grouped_gemm", "head, argmax",
                                           "head_gemm",  "attention",    "hyper-connections",
                                           "compressor", "routing",      "small ops"};
  return kNames[static_cast<int>(kind)];
}

double BoundSeconds(const OpTallies& tallies, const DeviceRates& rates) {
  double seconds = 0;
  for (const OpTally& tally : tallies) {
    OpCost cost = tally.cost;
    cost.bytes = cost.stored_bytes;
    seconds += RooflineSeconds(cost, rates);
  }
  return seconds;
}

CountingDevice::CountingDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {
  CHECK(count.ops == nullptr || count.ops == &device_->ops()) << "counting devices of two backends";
  count.ops = &device_->ops();
  ++count.devices;
}

CountingDevice::~CountingDevice() {
  if (--count.devices == 0) count = {};
}

void CountingDevice::StartCounting(const CostContext& shape, int32_t head_width) {
  CHECK(!count.counting) << "one device counts at a time";
  count.counting = true;
  count.shape = shape;
  count.head_width = head_width;
  count.tallies = {};
}

OpTallies CountingDevice::TakeTallies() {
  count.counting = false;
  return std::exchange(count.tallies, OpTallies{});
}

OpCost CountingDevice::TakeCost() {
  OpCost sum;
  for (const OpTally& tally : TakeTallies()) sum += tally.cost;
  return sum;
}

std::unique_ptr<Graph> CountingDevice::Capture(Stream& stream, const std::function<void()>& record) {
  CountedGraph::Ops ops;
  count.recorded = &ops;
  std::unique_ptr<Graph> graph = device_->Capture(stream, record);
  count.recorded = nullptr;
  return std::make_unique<CountedGraph>(std::move(graph), std::move(ops));
}

const Ops& CountingDevice::ops() const {
  static constexpr Ops kOps = {
#define OP(name, Stem) .name = Counted<Stem##Params, &Ops::name>,
#include "kernels/ops/list.inc"
  };
  return kOps;
}

}  // namespace foredraft
