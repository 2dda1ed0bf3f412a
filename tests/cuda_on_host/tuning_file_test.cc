#include "kernels/cuda/gemm/tuning_file.h"

#include <algorithm>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

using testing::HasSubstr;

TuningFile SampleFile() {
  TuningFile file;
  file.tuned_for = {.cublaslt = 130100, .gpu = "NVIDIA H200", .multiprocessors = 132};
  TunedAlgorithm algorithm = {
      .attributes = {{"tile", 20}, {"stages", 8}}, .name = "o_proj", .us = 27.5, .own_us = 31.25};
  for (int i = 0; i < 64; ++i) algorithm.bytes[i] = static_cast<uint8_t>(i * 7);
  file.algorithms[{7168, 16384, DType::kF8E4M3, DType::kF32, GemmForm::kPrefill}] = algorithm;
  algorithm.bytes[63] = 1;
  file.algorithms[{32768, 512, DType::kBF16, DType::kBF16, GemmForm::kPrefill}] = algorithm;
  return file;
}

std::string WriteTemporary(const std::string& text) {
  const std::string path = testing::TempDir() + "/tuning.json";
  std::ofstream(path) << text;
  return path;
}

TEST(TuningFile, ReadsWhatItWrote) {
  const TuningFile file = SampleFile();
  const auto read = ParseTuningFile(WriteTuningFile(file), "t.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->tuned_for, file.tuned_for);
  EXPECT_EQ(read->algorithms, file.algorithms);
}

TEST(TuningFile, IsUsedOnlyWhereItWasMade) {
  const TunedFor here = SampleFile().tuned_for;
  const std::string path = WriteTemporary(WriteTuningFile(SampleFile()));
  EXPECT_EQ(LoadTunedAlgorithms(path, here)->size(), 2u);
  TunedFor others[] = {here, here, here};
  others[0].cublaslt = 130200;
  others[1].gpu = "NVIDIA H100 80GB HBM3";
  others[2].multiprocessors = 114;
  for (const TunedFor& other : others) {
    testing::internal::CaptureStderr();
    const auto algorithms = LoadTunedAlgorithms(path, other);
    const std::string log = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(algorithms.ok()) << algorithms.status();
    EXPECT_TRUE(algorithms->empty());
    EXPECT_THAT(log, HasSubstr("is not used: made for NVIDIA H200 with 132 SMs and cublasLt 130100"));
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
  }
}

TEST(TuningFile, NoPathMeansNoAlgorithms) { EXPECT_TRUE(LoadTunedAlgorithms("", {})->empty()); }

TEST(TuningFile, AnUnreadableFileIsNamed) {
  const auto algorithms = LoadTunedAlgorithms("/nowhere/tuning.json", {});
  EXPECT_EQ(algorithms.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(algorithms.status().message()),
              HasSubstr("cublaslt.tuning_file: /nowhere/tuning.json"));
}

TEST(TuningFile, KeysTellShapesTypesAndFormsApart) {
  const auto algorithms = SampleFile().algorithms;
  const GemmShape shape = {7168, 16384, DType::kF8E4M3, DType::kF32, GemmForm::kPrefill};
  GemmShape others[] = {shape, shape, shape, shape, shape};
  others[0].n = 7169;
  others[1].k = 512;
  others[2].weight = DType::kBF16;
  others[3].out = DType::kBF16;
  others[4].form = GemmForm::kDecode;
  EXPECT_TRUE(algorithms.contains(shape));
  for (const GemmShape& other : others) EXPECT_FALSE(algorithms.contains(other));
}

struct BrokenFile {
  const char* name;
  const char* from;
  const char* to;
  const char* message;
};

const BrokenFile kBrokenFiles[] = {
    {"no JSON", "{", "[", "not a JSON object"},
    {"no version", "\"cublaslt\"", "\"cublas\"", "file: cublaslt: missing"},
    {"no list", "\"gemms\"", "\"gems\"", "gemms: expected a list"},
    {"a dtype", "F8_E4M3", "F8_E5M2", "weight: \"F8_E5M2\", allowed BF16, F8_E4M3"},
    {"a form", "\"prefill\"", "\"both\"", "form: \"both\", allowed decode, prefill"},
    {"no hex", "\"algorithm\": \"00", "\"algorithm\": \"zz", "expected 128 hexadecimal digits"},
    {"short hex", "\"algorithm\": \"00", "\"algorithm\": \"", "126 characters, expected 128"},
    {"an attribute", "\"stages\": 8", "\"stages\": \"8\"", "attributes: stages: expected a number"},
};

TEST(TuningFile, RefusesWhatItCannotTrust) {
  for (const BrokenFile& broken : kBrokenFiles) {
    SCOPED_TRACE(broken.name);
    std::string text = WriteTuningFile(SampleFile());
    const size_t at = text.find(broken.from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, std::string(broken.from).size(), broken.to);
    const auto file = ParseTuningFile(text, "t.json");
    ASSERT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("cublaslt.tuning_file: t.json: "));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(broken.message));
  }
}

TEST(TuningFile, RefusesAGemmThatIsThereTwice) {
  TuningFile file = SampleFile();
  file.algorithms.erase(file.algorithms.begin());
  std::string text = WriteTuningFile(file);
  const size_t begin = text.find("  {"), end = text.rfind("\n ]");
  const std::string entry = text.substr(begin, end - begin);
  text.insert(begin, entry + ",\n");
  EXPECT_THAT(std::string(ParseTuningFile(text, "t.json").status().message()),
              HasSubstr("gemms[1]: the same GEMM as an earlier entry"));
}

}  // namespace
}  // namespace foredraft
