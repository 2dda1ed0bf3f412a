// The contract's kernel functions, each called by its name: of one row of a golden each gives what the
// float64 reference gives, and the longer ones are the shorter ones in sequence.

#include "tools/validate_mtp/kernel_functions.h"

#include <cmath>
#include <optional>

#include "engine/kinds/read_model_config.h"
#include "engine/model_weights.h"
#include "gtest/gtest.h"
#include "tools/validate_mtp/mtp_reference.h"

namespace foredraft {
namespace {

using reference::MtpReference;
using reference::Vector;
using reference::Weights;

class KernelFunctions : public testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = "tests/golden/checkpoints/deepseek_v4";
    config_ = *ReadModelConfig(dir + "/config.json");
    backend_ = *CreateDevice("cpu", {.threads = 2});
    const std::unique_ptr<Stream> stream = backend_->CreateStream();
    device_ =
        *MtpDevice::Create(*backend_, config_, *LoadWeights(dir, config_, 1, *backend_, *stream, nullptr),
                           {.slots = 1, .positions = 16, .rows = 4});
    exact_.emplace(*Weights::Open(dir, config_, Weights::Precision::kExact));
    reference_ = MtpReference::Create(*exact_, config_);
    rows_ = {.ids = {7}, .slots = {0}, .positions = {1}};
    for (int i = 0; i < device_->width(); ++i)
      rows_.previous.push_back(std::sin(0.7f * static_cast<float>(i)));
    row_ = {.sequence = 0,
            .position = 1,
            .token = 7,
            .previous = Vector(rows_.previous.begin(), rows_.previous.end())};
  }

  // A block of the golden rounds to BF16, by 2^-8 at most, some ten times.
  static void ExpectNear(const std::vector<float>& values, const Vector& expected) {
    ASSERT_EQ(values.size(), expected.size());
    double square = 0;
    for (const double value : expected) square += value * value;
    const double allowed = 0.05 * std::sqrt(square / static_cast<double>(expected.size()));
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], expected[i], allowed) << i;
  }

  ModelConfig config_;
  std::unique_ptr<Device> backend_;
  std::unique_ptr<MtpDevice> device_;
  std::optional<Weights> exact_;
  std::unique_ptr<MtpReference> reference_;
  DeviceRows rows_;
  reference::MtpRow row_;
};

TEST_F(KernelFunctions, MtpSeedHcStack) {
  Vector copies;
  for (int i = 0; i < device_->width(); ++i) copies.push_back(rows_.previous[i % config_.hidden_size]);
  const std::vector<float> seeded = MtpSeedHcStack(*device_, rows_);
  EXPECT_EQ(Vector(seeded.begin(), seeded.end()), copies);
}

TEST_F(KernelFunctions, MtpProjectionImpl) {
  ExpectNear(MtpProjectionImpl(*device_, rows_), reference_->Project(row_));
}

TEST_F(KernelFunctions, MtpDecoderLayerTail) {
  const std::vector<float> projected = MtpProjectionImpl(*device_, rows_);
  ExpectNear(MtpDecoderLayerTail(*device_, rows_, projected),
             reference_->Layer(row_, Vector(projected.begin(), projected.end())));
}

TEST_F(KernelFunctions, MtpForwardTail) {
  const std::vector<float> forward = MtpForwardTail(*device_, rows_);
  EXPECT_EQ(forward, MtpDecoderLayerTail(*device_, rows_, MtpProjectionImpl(*device_, rows_)));
  ExpectNear(forward, reference_->Forward(row_));
}

TEST_F(KernelFunctions, MtpComputeLogitsTail) {
  const std::vector<float> outputs = MtpForwardTail(*device_, rows_);
  ExpectNear(MtpComputeLogitsTail(*device_, outputs),
             reference_->Logits(Vector(outputs.begin(), outputs.end())));
}

TEST_F(KernelFunctions, MtpFullChain) {
  const MtpChainResult chain = MtpFullChain(*device_, rows_);
  EXPECT_EQ(chain.outputs, MtpForwardTail(*device_, rows_));
  EXPECT_EQ(chain.logits, MtpComputeLogitsTail(*device_, chain.outputs));
  ExpectNear(chain.logits, reference_->Logits(reference_->Forward(row_)));
}

}  // namespace
}  // namespace foredraft
