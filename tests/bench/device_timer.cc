#include "tests/bench/device_timer.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "base/check.h"

namespace foredraft {
namespace {

constexpr int kSamples = 15;

double ReplaySeconds(Device& device, Stream& stream, const Graph& graph) {
  const auto start = device.CreateEvent();
  const auto end = device.CreateEvent();
  start->Record(stream);
  graph.Replay(stream);
  end->Record(stream);
  stream.Synchronize();
  CHECK(end->Wait(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  return end->SecondsSince(*start);
}

}  // namespace

double MedianSeconds(Device& device, Stream& stream, const std::function<void(int i)>& submit,
                     const SampleLength& length) {
  submit(0);  // loads the kernel and allocates its workspace
  stream.Synchronize();
  const auto capture = [&](int calls) {
    return device.Capture(stream, [&] {
      for (int i = 0; i < calls; ++i) submit(i);
    });
  };
  const auto one = capture(1);
  ReplaySeconds(device, stream, *one);
  const double once = std::max(1e-7, ReplaySeconds(device, stream, *one));
  const int calls = std::clamp(static_cast<int>(length.seconds / once), 1, length.max_calls);
  const auto many = capture(calls);
  ReplaySeconds(device, stream, *many);
  std::vector<double> samples(kSamples);
  for (double& sample : samples) sample = ReplaySeconds(device, stream, *many) / calls;
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2];
}

}  // namespace foredraft
