#include "engine/checkpoint/safetensors.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/checkpoint_files.h"

namespace foredraft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string WriteTestFile(const std::string& bytes) {
  const std::string path = MakeTestDir("file") + "/x.safetensors";
  WriteFile(path, bytes);
  return path;
}

TEST(Safetensors, ReadsWhatWasWritten) {
  const std::string path = MakeTestDir("file") + "/x.safetensors";
  WriteSafetensors(path, {{"a", "U8", {3}, "abc"},
                          {"empty", "BF16", {0, 7}, ""},
                          {"scalar", "I16", {}, "xy"},
                          {"b", "F8_E4M3", {2, 2}, "wxyz"}});
  auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 4u);
  const TensorEntry* b = file->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, "F8_E4M3");
  EXPECT_THAT(b->shape, ElementsAre(2, 2));
  std::string bytes(2, '\0');
  ASSERT_TRUE(file->Read(*b, 1, 2, bytes.data()).ok());
  EXPECT_EQ(bytes, "xy");
  EXPECT_EQ(file->Find("c"), nullptr);
}

// The element is found in any piece of a large read, and in a read that does not begin at the tensor.
TEST(Safetensors, RefusesNumbersThatAreNotFinite) {
  const std::string path = MakeTestDir("file") + "/x.safetensors";
  std::string bytes(300'000 * 4, '\0');
  bytes.replace((250'000 + 17) * 4, 4, std::string("\x00\x00\xc0\x7f", 4));
  WriteSafetensors(path, {{"a", "F32", {300, 1000}, bytes}});
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorEntry& tensor = file->tensors()[0];
  std::string out(bytes.size(), '\0');
  const absl::Status refused = absl::InvalidArgumentError(
      path + ": tensor a: element [250, 17]: NaN or infinite, allowed finite numbers");
  EXPECT_EQ(file->Read(tensor, 0, tensor.bytes, out.data()), refused);
  EXPECT_EQ(file->Read(tensor, 250'000 * 4, 4'000, out.data()), refused);
  EXPECT_TRUE(file->Read(tensor, 0, 250'000 * 4, out.data()).ok());
}

// The largest checkpoints have 91,991 tensors in one index; a header of 40,000 took minutes once.
TEST(Safetensors, ReadsAHeaderOf40000TensorsInASecond) {
  std::string header = "{";
  for (int i = 0; i < 40'000; ++i) {
    header += absl::StrFormat(
        R"(%s"model.layers.%d.mlp.experts.%d.up_proj.weight":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]})",
        i == 0 ? "" : ",", i / 256, i % 256, i, i + 1);
  }
  const auto start = std::chrono::steady_clock::now();
  const auto tensors = ParseSafetensorsHeader(header + "}", 0, 40'000, "x");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->size(), 40'000u);
  EXPECT_LT(seconds, 10) << "linear: 0.2 s on an idle core; superlinear: minutes";
}

TEST(Safetensors, ReadsAFileWithoutTensors) {
  auto file = SafetensorsFile::Open(WriteTestFile(SafetensorsBytes("{}", "")));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->tensors().empty());
}

// Writers pad the header with spaces to align the data.
TEST(Safetensors, AcceptsSpacesAfterTheHeader) {
  auto file = SafetensorsFile::Open(WriteTestFile(
      SafetensorsBytes(R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}     )", "x")));
  EXPECT_TRUE(file.ok()) << file.status();
}

TEST(Safetensors, AFileThatShrinksIsAnErrorNotASignal) {
  const std::string path = MakeTestDir("file") + "/x.safetensors";
  WriteSafetensors(path, {{"a", "U8", {5000}, std::string(5000, 'x')}});
  auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(truncate(path.c_str(), 4000), 0);
  std::string bytes(5000, '\0');
  const absl::Status status = file->Read(*file->Find("a"), 0, 5000, bytes.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("x.safetensors: tensor a: file ends at byte 4000"));
}

TEST(Safetensors, MissingFileIsNotFound) {
  const absl::Status status = SafetensorsFile::Open("/nonexistent/x.safetensors").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
}

TEST(Safetensors, ADirectoryIsRefused) {
  EXPECT_THAT(std::string(SafetensorsFile::Open(MakeTestDir("file")).status().message()),
              HasSubstr("not a regular file"));
}

std::string Length(uint64_t length) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}

// One tensor "a" whose entry is `entry`, and four bytes of data.
std::string OneEntry(const std::string& entry) { return SafetensorsBytes(R"({"a": )" + entry + "}", "data"); }

std::string TwoRanges(const std::string& first, const std::string& second) {
  return SafetensorsBytes(R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": )" + first +
                              R"(}, "b": {"dtype": "U8", "shape": [2], "data_offsets": )" + second + "}}",
                          "data");
}

struct BrokenFile {
  const char* name;  // the rule it breaks
  std::function<std::string()> bytes;
  const char* error;
};

class SafetensorsRefuses : public ::testing::TestWithParam<BrokenFile> {};

TEST_P(SafetensorsRefuses, NamingTheFile) {
  const absl::Status status = SafetensorsFile::Open(WriteTestFile(GetParam().bytes())).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/x.safetensors: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().error));
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
}

const BrokenFile kBrokenFiles[] = {
    {"EmptyFile", [] { return std::string(); }, "0 bytes, too short"},
    {"SevenBytes", [] { return std::string(7, '\0'); }, "7 bytes, too short"},
    {"GitLfs",
     [] { return std::string("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"); },
     "a pointer of Git LFS, not the file itself: git lfs pull brings it"},
    {"HeaderPastTheEnd", [] { return Length(100) + "{}"; }, "header length: 100, the file has 10 bytes"},
    {"HeaderOver100Mb", [] { return Length(100'000'001) + "{}"; },
     "header length: 100000001, allowed 100000000"},
    {"HeaderLengthWraps", [] { return Length(~uint64_t{0}) + "{}"; }, "header length: 18446744073709551615"},
    {"HeaderEmpty", [] { return Length(0); }, "does not start with {"},
    {"HeaderStartsWithSpace", [] { return SafetensorsBytes(" {}", ""); }, "does not start with {"},
    {"HeaderIsAList", [] { return SafetensorsBytes("[]", ""); }, "does not start with {"},
    {"HeaderHasBom", [] { return SafetensorsBytes("\xef\xbb\xbf{}", ""); }, "does not start with {"},
    {"HeaderCut", [] { return SafetensorsBytes(R"({"a": )", ""); }, "not JSON"},
    {"HeaderNotUtf8", [] { return SafetensorsBytes("{\"\xff\": 1}", ""); }, "not JSON"},
    {"TextAfterTheHeader", [] { return SafetensorsBytes("{} {}", ""); }, "not JSON"},
    {"HeaderTooDeep", [] { return SafetensorsBytes("{\"a\": " + std::string(1000, '['), ""); },
     "nested deeper than 64"},
    {"NameTwice",
     [] {
       return SafetensorsBytes(R"({"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]},
                                   "a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})",
                               "");
     },
     R"(key "a" given twice)"},
    {"FieldTwice",
     [] { return OneEntry(R"({"dtype": "U8", "dtype": "I8", "shape": [4], "data_offsets": [0, 4]})"); },
     R"(key "dtype" given twice)"},
    {"MetadataNotObject", [] { return SafetensorsBytes(R"({"__metadata__": []})", ""); },
     "__metadata__ is not an object"},
    {"MetadataNotString", [] { return SafetensorsBytes(R"({"__metadata__": {"k": 1}})", ""); },
     "__metadata__.k: 1, allowed strings"},
    {"EntryNotObject", [] { return OneEntry("3"); }, "tensor a: not an object"},
    {"NoDtype", [] { return OneEntry(R"({"shape": [4], "data_offsets": [0, 4]})"); },
     "tensor a: dtype: missing"},
    {"NoShape", [] { return OneEntry(R"({"dtype": "U8", "data_offsets": [0, 4]})"); },
     "tensor a: shape: missing"},
    {"NoOffsets", [] { return OneEntry(R"({"dtype": "U8", "shape": [4]})"); },
     "tensor a: data_offsets: missing"},
    {"UnknownField",
     [] { return OneEntry(R"({"dtype": "U8", "shape": [4], "data_offsets": [0, 4], "x": 1})"); },
     "tensor a: fields beside"},
    {"UnknownDtype", [] { return OneEntry(R"({"dtype": "F4", "shape": [4], "data_offsets": [0, 4]})"); },
     R"(tensor a: dtype: "F4", unknown)"},
    {"DtypeNotString", [] { return OneEntry(R"({"dtype": 8, "shape": [4], "data_offsets": [0, 4]})"); },
     "tensor a: dtype: 8, unknown"},
    {"NegativeSize", [] { return OneEntry(R"({"dtype": "U8", "shape": [-4], "data_offsets": [0, 4]})"); },
     "tensor a: shape: [-4]"},
    {"FractionalSize", [] { return OneEntry(R"({"dtype": "U8", "shape": [4.0], "data_offsets": [0, 4]})"); },
     "tensor a: shape: [4.0]"},
    {"SizeOverflows",
     [] {
       return OneEntry(R"({"dtype": "F32", "shape": [4294967296, 4294967297], "data_offsets": [0, 4]})");
     },
     "tensor a: shape: [4294967296,4294967297], allowed non-negative sizes whose product fits"},
    {"RankNine",
     [] { return OneEntry(R"({"dtype": "U8", "shape": [4,1,1,1,1,1,1,1,1], "data_offsets": [0, 4]})"); },
     "allowed up to 8 sizes"},
    {"OffsetsReversed", [] { return OneEntry(R"({"dtype": "U8", "shape": [4], "data_offsets": [4, 0]})"); },
     "tensor a: data_offsets: [4,0], allowed begin <= end <= 4"},
    {"OffsetsNegative", [] { return OneEntry(R"({"dtype": "U8", "shape": [4], "data_offsets": [-1, 3]})"); },
     "tensor a: data_offsets: [-1,3]"},
    {"OffsetsPastTheEnd", [] { return OneEntry(R"({"dtype": "U8", "shape": [5], "data_offsets": [0, 5]})"); },
     "tensor a: data_offsets: [0,5], the file ends 1 bytes before: an interrupted copy?"},
    {"ThreeOffsets", [] { return OneEntry(R"({"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 4]})"); },
     "tensor a: data_offsets: [0,4,4]"},
    {"LengthDisagrees", [] { return OneEntry(R"({"dtype": "U8", "shape": [3], "data_offsets": [0, 4]})"); },
     "tensor a: data_offsets: [0,4] are 4 bytes, dtype and shape make 3"},
    {"FirstNotZero",
     [] {
       return SafetensorsBytes(R"({"a": {"dtype": "U8", "shape": [3], "data_offsets": [1, 4]}})", "data");
     },
     "tensor a: data_offsets: begins at 1, hole"},
    {"Hole",
     [] {
       return SafetensorsBytes(R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                                   "b": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}})",
                               "data");
     },
     "tensor b: data_offsets: begins at 2, hole"},
    {"Overlap", [] { return TwoRanges("[0, 2]", "[1, 3]"); },
     "tensor b: data_offsets: begins at 1, overlap up to 2"},
    {"SameRangeTwice", [] { return TwoRanges("[0, 2]", "[0, 2]"); }, "overlap up to 2"},
    {"BytesLeftOver", [] { return OneEntry(R"({"dtype": "U8", "shape": [3], "data_offsets": [0, 3]})"); },
     "tensors cover 3 bytes, the data section has 4"},
    {"DataCut",
     [] {
       return SafetensorsBytes(R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})", "dat");
     },
     "tensor a: data_offsets: [0,4], the file ends 1 bytes before: an interrupted copy?"},
    {"NameEmpty",
     [] { return SafetensorsBytes(R"({"": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})", ""); },
     "tensor name of 0 bytes, allowed 1..512"},
    {"NameTooLong",
     [] {
       return SafetensorsBytes(
           "{\"" + std::string(513, 'n') + R"(": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})",
           "");
     },
     "tensor name of 513 bytes, allowed 1..512"},
};
INSTANTIATE_TEST_SUITE_P(Rules, SafetensorsRefuses, ::testing::ValuesIn(kBrokenFiles),
                         [](const auto& info) { return info.param.name; });

TEST(Safetensors, RefusesMoreThanAMillionTensors) {
  std::string header = "{";
  for (int i = 0; i < 1'000'002; ++i) header += absl::StrFormat("%s\"%d\":0", i == 0 ? "" : ",", i);
  const absl::Status status = ParseSafetensorsHeader(header + "}", 0, 0, "f").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("f: 1000002 tensors, allowed 1000000"));
}

// Every prefix of a good file is refused, none crashes the reader.
TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string dir = MakeTestDir("cuts");
  WriteSafetensors(dir + "/good", {{"a", "U8", {3}, "abc"}, {"b", "F32", {2}, "12345678"}});
  const int64_t whole = static_cast<int64_t>(std::filesystem::file_size(dir + "/good"));
  ASSERT_TRUE(SafetensorsFile::Open(dir + "/good").ok());
  for (int64_t length = whole - 1; length >= 0; --length) {
    ASSERT_EQ(truncate((dir + "/good").c_str(), length), 0);
    EXPECT_FALSE(SafetensorsFile::Open(dir + "/good").ok()) << length;
  }
}

}  // namespace
}  // namespace foredraft
