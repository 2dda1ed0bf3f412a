// The float64 references of tools/validate_mtp against reference_v4.py and reference_model.py
// (tests/golden/make_mtp_module_golden.py).

#include "tools/validate_mtp/mtp_reference.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/kinds/read_model_config.h"
#include "gtest/gtest.h"
#include "tools/validate_mtp/indexer_reference.h"

namespace foredraft::reference {
namespace {

using Json = nlohmann::json;

// The golden's numbers have 12 digits; V3's weights in FP8 and 4 bits are products in float32 there.
constexpr double kAllowed = 1e-6;

void ExpectEqual(const Vector& values, const Json& expected, const std::string& what) {
  ASSERT_EQ(values.size(), expected.size()) << what;
  double largest = 0, square = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = expected[i].get<double>();
    largest = std::max(largest, std::abs(values[i] - value));
    square += value * value;
  }
  EXPECT_LT(largest, kAllowed * std::sqrt(square / static_cast<double>(values.size()))) << what;
}

std::vector<Vector> Previous(size_t rows, int width) {
  std::vector<Vector> all(rows);
  for (size_t row = 0; row < rows; ++row) {
    for (int i = 0; i < width; ++i) {
      all[row].push_back(1.5 * std::cos(0.7391 * static_cast<double>(row * width + i)));
    }
  }
  return all;
}

void Compare(const Json& golden) {
  const std::string dir = golden["checkpoint"].get<std::string>();
  SCOPED_TRACE(dir);
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(dir + "/config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  const absl::StatusOr<Weights> weights = Weights::Open(dir, *config, Weights::Precision::kExact);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const std::unique_ptr<MtpReference> reference = MtpReference::Create(*weights, *config);
  const std::vector<int> ids = golden["ids"].get<std::vector<int>>();
  const int width = OutputWidth(*config);
  const std::vector<Vector> previous = Previous(ids.size(), width);
  std::vector<Vector> outputs;
  Vector projection;
  for (size_t row = 0; row < ids.size(); ++row) {
    const MtpRow input = {
        .position = static_cast<int>(row) + 1, .token = ids[row], .previous = previous[row]};
    projection = reference->Project(input);
    outputs.push_back(reference->Forward(input));
  }
  ExpectEqual(projection, golden["projection"], "projection");
  ExpectEqual(outputs.back(), golden["output"], "output");
  for (const Json& row : golden["logits"]) {
    ExpectEqual(reference->Logits(outputs[row["row"].get<size_t>()]), row["values"],
                "logits of row " + row["row"].dump());
  }
  EXPECT_TRUE(weights->status().ok()) << weights->status();
}

TEST(SelectionGap, IsZeroForTheHighestScoresAlone) {
  const Vector scores = {3, 1, 2, 2};  // of positions 1 to 4
  EXPECT_EQ(SelectionGap(scores, {1, 3}, 2), 0);
  EXPECT_EQ(SelectionGap(scores, {1, 4}, 2), 0);  // a tie
  EXPECT_EQ(SelectionGap(scores, {1, 2}, 2), 1);
  EXPECT_EQ(SelectionGap(scores, {2, 3}, 2), 2);
  EXPECT_EQ(SelectionGap(scores, {1, 2, 3, 4}, 4), 0);
}

TEST(SelectionGap, IsInfiniteForWhatIsNoList) {
  const Vector scores = {3, 1, 2, 2};
  for (const std::vector<int>& chosen :
       {std::vector<int>{1}, {1, 2, 3}, {0, 1}, {3, 1}, {1, 1}, {1, 5}, {}}) {
    EXPECT_EQ(SelectionGap(scores, chosen, 2), std::numeric_limits<double>::infinity());
  }
}

TEST(MtpReference, EqualsTheReferencesInPython) {
  std::ifstream file("tests/golden/mtp_module.golden.json");
  const Json golden = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(golden.is_object());
  ASSERT_EQ(golden["cases"].size(), 10u);
  for (const Json& entry : golden["cases"]) Compare(entry);
}

}  // namespace
}  // namespace foredraft::reference
