// CudaDevice beyond its ops, on the emulated CUDA.

#include "kernels/cuda/device/cuda_device.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/gemm/packed_weight.h"
#include "tests/cuda_on_host/counts.h"
#include "tests/weight_formats.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = CreateDevice("cuda", {});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    stream_ = device_->CreateStream();
  }

  template <class T>
  std::vector<T> Get(const T* memory, size_t count) {
    std::vector<T> values(count);
    device_->CopyToHost(*stream_, values.data(), memory, count * sizeof(T));
    stream_->Synchronize();
    return values;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaDeviceTest, NamesWhatMayChangeABit) {
  EXPECT_THAT(device_->name(), ::testing::StartsWith("cuda "));
  EXPECT_THAT(device_->name(), HasSubstr(" SMs, cublasLt "));
}

// The emulated GPU's kernels: those of Hopper, or where FOREDRAFT_HOST_CAPABILITY names another GPU the
// generic ones.
TEST_F(CudaDeviceTest, TheCapabilityChoosesTheKernels) {
  const char* const other = std::getenv("FOREDRAFT_HOST_CAPABILITY");
  const bool generic = other != nullptr, small = generic && std::string(other) == "8.9";
  EXPECT_THAT(device_->name(), HasSubstr(small     ? " sm_89 generic "
                                         : generic ? " sm_100 generic "
                                                   : " sm_90a "));
  EXPECT_EQ(device_->quantizes_rows(), !generic);
  EXPECT_EQ(cuda::RunsHopperKernels(), !generic);
  EXPECT_EQ(cuda::LaunchesProgrammatically(), !small);
  EXPECT_EQ(cuda::SharedMemoryLimit(), small ? 101376u : 232448u);
}

TEST_F(CudaDeviceTest, TheCapabilityNamesTheBuildThatABinaryWithoutCodeForItLacks) {
  const char* const other = std::getenv("FOREDRAFT_HOST_CAPABILITY");
  const std::string capability = other != nullptr ? other : "9.0";
  const std::string arch = capability == "8.9" ? "89" : capability == "10.0" ? "100" : "90a";
  cuda_on_host::SetKernelImages(false);
  const auto device = CreateDevice("cuda", {});
  cuda_on_host::SetKernelImages(true);
  EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(device.status().message(),
              HasSubstr("CUDA on the host has compute capability " + capability +
                        ", for which this binary has no code: build it with -DFOREDRAFT_CUDA_ARCHS=" + arch +
                        " (docs/status.md"));
}

TEST_F(CudaDeviceTest, SaysWhichGpuItIs) {
  EXPECT_EQ(device_->hardware_id(), "GPU-40404040-4040-4040-4040-404040404040 at 0000:1B:00.0");
  cuda_on_host::SetDeviceCount(2);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const auto other = CreateDevice("cuda", {});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ((*other)->hardware_id(), "GPU-41414141-4141-4141-4141-414141414141 at 0000:1C:00.0");
  EXPECT_EQ((*other)->name(), device_->name()) << "the numerics class does not depend on which it is";
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  cuda_on_host::SetDeviceCount(1);
}

TEST_F(CudaDeviceTest, ARefusalShowsTheSum) {
  device_->BeginPurpose("weights");
  ASSERT_TRUE(device_->Allocate(size_t{100} << 20).ok());
  ASSERT_TRUE(device_->Allocate(size_t{28} << 20).ok());
  device_->BeginPurpose("KV cache");
  const DeviceMemory before = device_->memory();
  const auto refused = device_->Allocate(size_t{1} << 40);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("need 1024.00 GiB for KV cache, free "));
  EXPECT_THAT(refused.status().message(), HasSubstr("held: weights 128.00 MiB"));
  EXPECT_EQ(device_->memory().free_bytes, before.free_bytes);
  EXPECT_TRUE(device_->Allocate(1).ok()) << "a refusal is not the end";
}

TEST_F(CudaDeviceTest, HostBytesAreFreeOnceTheyAreSubmitted) {
  std::vector<int32_t> values(3 << 20);  // more than all staging memory
  std::iota(values.begin(), values.end(), 7);
  const std::vector<int32_t> sent = values;
  int32_t* const memory = *device_->AllocateArray<int32_t>(values.size());
  device_->CopyToDevice(*stream_, memory, values.data(), values.size() * sizeof(int32_t));
  std::fill(values.begin(), values.end(), -1);
  EXPECT_EQ(Get(memory, sent.size()), sent);
}

TEST_F(CudaDeviceTest, PinnedCopiesWaitForNothing) {
  int32_t* const host = *device_->AllocatePinnedArray<int32_t>(2);
  int32_t* const memory = *device_->AllocateArray<int32_t>(1);
  const cuda_on_host::Counts before = cuda_on_host::CurrentCounts();
  host[0] = 5;
  device_->CopyPinnedToDevice(*stream_, memory, host, sizeof(int32_t));
  device_->CopyToHost(*stream_, host + 1, memory, sizeof(int32_t));
  EXPECT_EQ(cuda_on_host::CurrentCounts().syncs, before.syncs);
  const std::unique_ptr<Event> event = device_->CreateEvent();
  event->Record(*stream_);
  EXPECT_TRUE(event->Wait(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  EXPECT_EQ(host[1], 5);
}

TEST_F(CudaDeviceTest, AnEventThatIsNotPassedEndsAtTheDeadline) {
  float* const memory = *device_->AllocateArray<float>(64);
  for (int i = 0; i < 50; ++i) {
    device_->ops().add(*stream_, {.out = Dense(memory, 1, 64), .x = Dense<const float>(memory, 1, 64)});
  }
  const std::unique_ptr<Event> event = device_->CreateEvent();
  event->Record(*stream_);
  EXPECT_FALSE(event->Wait(std::chrono::steady_clock::now()));
  EXPECT_TRUE(event->Wait(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
}

TEST_F(CudaDeviceTest, AnArrayOfWeightsIsOneAllocation) {
  std::vector<std::vector<bf16>> values(3, std::vector<bf16>(5 * 7));
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = 0; j < values[i].size(); ++j) values[i][j] = ToBf16(static_cast<float>(100 * i + j));
  }
  const auto packed = device_->PackWeights(3, [&](int i) -> absl::StatusOr<std::vector<HostWeight>> {
    return std::vector<HostWeight>{{.n = 5, .k = 7, .data = values[i].data()}};
  });
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(packed->data_stride, 256);
  const std::vector<PackedWeight> items = Get(packed->items, 3);
  for (int i = 0; i < 3; ++i) {
    const auto* const data = static_cast<const unsigned char*>(packed->first.data) + i * packed->data_stride;
    EXPECT_EQ(items[i].data, data);
    const std::vector<bf16> stored = Get(reinterpret_cast<const bf16*>(data), 5 * 7);
    EXPECT_EQ(std::memcmp(stored.data(), values[i].data(), 5 * 7 * sizeof(bf16)), 0) << i;
  }
}

// Two stacked FP8 parts.
struct F8Parts {
  F8Parts(int first_n, int second_n, int k, int block)
      : codes((first_n + second_n) * k), scales(2, std::vector<float>(64)) {
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(0x30 + i % 16);
    for (int i = 0; i < 64; ++i) scales[0][i] = 1.0f + i, scales[1][i] = 100.0f + i;
    const auto part = [&](int row, int n, const std::vector<float>& grid) {
      return HostWeight{.format = {.code = DType::kF8E4M3, .rows = block, .columns = block},
                        .n = n,
                        .k = k,
                        .data = codes.data() + row * k,
                        .scales = grid.data()};
    };
    parts = {part(0, first_n, scales[0]), part(first_n, second_n, scales[1])};
  }

  std::vector<uint8_t> codes;
  std::vector<std::vector<float>> scales;
  std::vector<HostWeight> parts;
};

TEST_F(CudaDeviceTest, BlockScalesStandInRowsOfFours) {
  const F8Parts f8(128, 130, 300, 128);  // 3 blocks of k; 1 and 2 of n
  const auto packed = device_->PackWeight(f8.parts);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(packed->format.code, DType::kF8E4M3);
  EXPECT_EQ(packed->n, 258);
  EXPECT_EQ(Get(packed->scales, 12), (std::vector<float>{1, 2, 3, 0, 100, 101, 102, 0, 103, 104, 105, 0}));
  EXPECT_EQ(Get(static_cast<const uint8_t*>(packed->data), f8.codes.size()), f8.codes);
}

TEST_F(CudaDeviceTest, AGridThatCannotBeStackedBecomesBf16) {
  const struct {
    const char* name;
    F8Parts parts;
  } cases[] = {{"parts meet inside a block", F8Parts(100, 28, 130, 128)},
               {"blocks of another size", F8Parts(128, 128, 130, 64)}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const auto packed = device_->PackWeight(c.parts.parts);
    ASSERT_TRUE(packed.ok()) << packed.status();
    ASSERT_EQ(packed->format.code, DType::kBF16);
    EXPECT_EQ(packed->scales, nullptr);
    const HostWeight& second = c.parts.parts[1];
    const int32_t row = c.parts.parts[0].n + 3;
    const std::vector<bf16> stored = Get(static_cast<const bf16*>(packed->data), int64_t{packed->n} * 130);
    const float scale = second.f32_scales()[129 / second.format.columns];
    EXPECT_EQ(ToFloat(stored[row * 130 + 129]),
              ToFloat(ToBf16(F8E4M3ToFloat(c.parts.codes[row * 130 + 129]) * scale)));
  }
}

// The code of an element and the scale of its group, as kernels/cuda/gemm/weight_4bit.h places them.
struct Element4Bit {
  int code;
  float scale;         // of its group
  float tensor_scale;  // of its output; 1 where the format has none
};

Element4Bit At(const std::vector<uint8_t>& bytes, const Layout4Bit& layout, int output, int input) {
  const uint8_t* const tile = bytes.data() + output / 64 * layout.tile_bytes();
  const uint8_t* const block =
      tile + layout.tensor_scale_bytes() + int64_t{input / 128} * layout.block_bytes();
  const uint8_t* const scale =
      block + Scale4At(output % 64, input % 128 / layout.group, layout.scale_bytes());
  const int quarter = input / 32 % 4, q = input / 8 % 4, lane = input / 2 % 4, p = input % 2;
  uint32_t word;
  bf16 group_scale;
  Element4Bit element = {.code = 0, .scale = 0, .tensor_scale = 1};
  std::memcpy(&word, block + Word4At(output % 64, lane, quarter), sizeof(word));
  std::memcpy(&group_scale, scale, sizeof(bf16));
  if (layout.nvfp4()) std::memcpy(&element.tensor_scale, tile + output % 64 * sizeof(float), sizeof(float));
  element.scale = layout.nvfp4() ? F8E4M3ToFloat(*scale) : ToFloat(group_scale);
  element.code = word >> (4 * q + 16 * p) & 15;
  return element;
}

TEST_F(CudaDeviceTest, FourBitWeightsLieInTilesWithTheirScales) {
  constexpr int kK = 160, kGroup = 32;  // a block and a quarter
  std::vector<uint8_t> codes(100 * kK / 2);
  std::vector<bf16> scales(100 * kK / kGroup);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37 + i / 256);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = ToBf16(1.0f + float(i));
  const auto part = [&](int first, int n) {
    return HostWeight{.format = Int4Format(kGroup),
                      .n = n,
                      .k = kK,
                      .data = codes.data() + first * kK / 2,
                      .scales = scales.data() + first * (kK / kGroup)};
  };
  const HostWeight parts[] = {part(0, 30), part(30, 70)};
  const auto packed = device_->PackWeight(parts);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(packed->format.code, DType::kInt4);
  EXPECT_EQ(packed->format.columns, kGroup);
  EXPECT_EQ(packed->n, 100);
  const Layout4Bit layout = {100, kK, kGroup};
  EXPECT_EQ(layout.bytes(), 2 * 2 * (4096 + 4 * 64 * 2));
  const std::vector<uint8_t> bytes = Get(static_cast<const uint8_t*>(packed->data), layout.bytes());
  for (int output = 0; output < 100; ++output) {
    for (int input = 0; input < kK; ++input) {
      const Element4Bit element = At(bytes, layout, output, input);
      const int index = output * kK + input;
      ASSERT_EQ(element.code, codes[index / 2] >> (index % 2 * 4) & 15) << output << ", " << input;
      ASSERT_EQ(element.scale, ToFloat(scales[index / kGroup])) << output << ", " << input;
    }
  }
  EXPECT_EQ(At(bytes, layout, 100, 0).scale, 0) << "an output past n";
  EXPECT_EQ(At(bytes, layout, 0, kK).scale, 0) << "an input past k";
}

TEST_F(CudaDeviceTest, Refuses4BitGroupsByName) {
  const std::vector<uint8_t> codes(64);
  const std::vector<bf16> scales(16);
  const auto part = [&](int group) {
    return HostWeight{
        .format = Int4Format(group), .n = 2, .k = 64, .data = codes.data(), .scales = scales.data()};
  };
  const RandomWeight random = DenseRandomWeight(4, 64, Int4Format(16), 1, 9);
  const HostWeight small = part(16);
  for (const absl::Status& status :
       {device_->PackWeight({&small, 1}).status(), device_->MakeRandomWeights(2, random).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("INT4 in groups of 16, allowed 32, 64, 128 on backend cuda"));
  }
  const auto mixed = device_->PackWeights(2, [&](int index) -> absl::StatusOr<std::vector<HostWeight>> {
    return std::vector<HostWeight>{part(index == 0 ? 64 : 32)};
  });
  EXPECT_THAT(mixed.status().message(), HasSubstr("weight 1 of an array has groups of 32, the first of 64"));
}

TEST_F(CudaDeviceTest, Random4BitWeightsAreThoseOfTheirNumbers) {
  for (const DType dtype : {DType::kInt4, DType::kF4E2M1}) {
    RandomWeight weight = DenseRandomWeight(70, 192, FormatOf(dtype, 64), 0.5f, 9);
    weight.offset = 11;
    const auto made = device_->MakeRandomWeights(2, weight);
    ASSERT_TRUE(made.ok()) << made.status();
    const Layout4Bit layout = {70, 192, 64};
    for (const int item : {0, 1}) {
      const std::vector<uint8_t> bytes =
          Get(static_cast<const uint8_t*>(made->first.data) + item * made->data_stride, layout.bytes());
      for (int output = 0; output < 70; output += 23) {
        for (int input = 0; input < 192; ++input) {
          const Element4Bit element = At(bytes, layout, output, input);
          EXPECT_EQ(element.code, RandomCode(weight, weight.number(item, output, input)));
          EXPECT_EQ(element.scale, RandomScale(weight));
        }
      }
      EXPECT_EQ(At(bytes, layout, 70, 0).scale, 0) << "an output past n";
      EXPECT_EQ(At(bytes, layout, 0, 192).scale, 0) << "an input past k";
    }
  }
}

// The scales of groups are 1, and before each tile are the tensor scales of its outputs.
TEST_F(CudaDeviceTest, RandomNvfp4WeightsHaveTensorScales) {
  RandomWeight weight = DenseRandomWeight(70, 192, kNvfp4Format, 0.5f, 9);
  weight.offset = 11;
  const auto made = device_->MakeRandomWeights(2, weight);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->first.format, kNvfp4Format);
  const Layout4Bit layout = {70, 192, kNvfp4Format.columns};
  const std::vector<uint8_t> bytes =
      Get(static_cast<const uint8_t*>(made->first.data) + made->data_stride, layout.bytes());
  for (int output = 0; output < 70; ++output) {
    for (int input = 0; input < 192; ++input) {
      const Element4Bit element = At(bytes, layout, output, input);
      ASSERT_EQ(element.code, RandomCode(weight, weight.number(1, output, input)));
      ASSERT_EQ(element.scale, 1);
      ASSERT_EQ(element.tensor_scale, RandomTensorScale(weight)) << output;
    }
  }
  EXPECT_EQ(At(bytes, layout, 70, 0).tensor_scale, 0) << "an output past n";
  EXPECT_EQ(At(bytes, layout, 70, 0).scale, 0) << "an output past n";
  EXPECT_EQ(At(bytes, layout, 0, 192).scale, 0) << "a group past k";
}

TEST_F(CudaDeviceTest, RandomWeightsAreThoseOfTheirNumbers) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    RandomWeight weight = DenseRandomWeight(70, 130, FormatOf(dtype), 0.5f, 9);
    weight.offset = 11;
    const auto made = device_->MakeRandomWeights(3, weight);
    ASSERT_TRUE(made.ok()) << made.status();
    const auto* const data = static_cast<const uint8_t*>(made->first.data);
    const std::vector<uint8_t> bytes = Get(data, 2 * made->data_stride + 70 * 130 * DTypeBytes(dtype));
    for (const auto& [item, row, column] : {std::array{0, 0, 0}, {1, 69, 129}, {2, 3, 64}}) {
      const int64_t place = int64_t{row} * 130 + column;
      const int64_t number = weight.number(item, row, column);
      const uint8_t* const at = bytes.data() + item * made->data_stride + place * DTypeBytes(dtype);
      if (dtype == DType::kF8E4M3) {
        EXPECT_EQ(*at, RandomCode(weight, number));
      } else {
        bf16 value;
        std::memcpy(&value, at, sizeof(value));
        EXPECT_EQ(value.bits, RandomBf16(weight, number).bits);
      }
    }
    if (dtype == DType::kF8E4M3) {
      const float scale = RandomScale(weight);
      EXPECT_EQ(Get(made->first.scales + 2 * made->scale_stride, 4),
                (std::vector<float>{scale, scale, 0, 0}));
    }
  }
}

TEST_F(CudaDeviceTest, GraphsAreEqualWhenTheirNodesAre) {
  float* const memory = *device_->AllocateArray<float>(64);
  const auto capture = [&](int rows, bool twice) {
    return device_->Capture(*stream_, [&, rows, twice] {
      for (int i = 0; i < (twice ? 2 : 1); ++i) {
        device_->ops().add(*stream_,
                           {.out = Dense(memory, rows, 16), .x = Dense<const float>(memory, rows, 16)});
      }
    });
  };
  const auto graph = capture(2, false);
  EXPECT_EQ(graph->node_count(), 1u);
  EXPECT_TRUE(graph->SameNodes(*capture(2, false)));
  EXPECT_FALSE(graph->SameNodes(*capture(3, false)));
  EXPECT_FALSE(graph->SameNodes(*capture(2, true)));
  const cuda_on_host::Counts before = cuda_on_host::CurrentCounts();
  graph->Replay(*stream_);
  EXPECT_EQ(cuda_on_host::CurrentCounts().graph_launches, before.graph_launches + 1);
  stream_->Synchronize();
}

TEST_F(CudaDeviceTest, AForkIsTheStreamItselfWithoutASideStream) {
  EXPECT_EQ(&stream_->Fork(), stream_.get());
  stream_->Join();
}

TEST_F(CudaDeviceTest, WithoutPdlEveryLaunchWaitsForTheOneBefore) {
  for (const bool pdl : {true, false}) {
    stream_.reset();
    device_ = *CreateDevice("cuda", {.pdl = pdl});
    stream_ = device_->CreateStream();
    float* const x = *device_->AllocateArray<float>(4);
    const int64_t before = cuda_on_host::CurrentCounts().programmatic_launches;
    for (int i = 0; i < 3; ++i) {
      device_->ops().add(*stream_, {.out = Dense(x, 1, 4), .x = Dense<const float>(x, 1, 4)});
    }
    stream_->Synchronize();
    EXPECT_EQ(cuda_on_host::CurrentCounts().programmatic_launches - before,
              pdl && cuda::LaunchesProgrammatically() ? 2 : 0);
  }
}

TEST_F(CudaDeviceTest, AStreamThatAsksForLessSharedMemoryTakesNoneFromAnother) {
  static const char kernel_address = 0;  // nothing is launched
  const void* const kernel = &kernel_address;
  auto& first = static_cast<CudaStream&>(*stream_);
  const std::unique_ptr<Stream> other = device_->CreateStream();
  first.PrepareLaunch(kernel, {.grid = 1, .block = 32, .shared_bytes = 90 * 1024}, nullptr, 0);
  static_cast<CudaStream&>(*other).PrepareLaunch(kernel, {.grid = 1, .block = 32, .shared_bytes = 60 * 1024},
                                                 nullptr, 0);
  cudaFuncAttributes attributes = {};
  ASSERT_EQ(cudaFuncGetAttributes(&attributes, kernel), cudaSuccess);
  EXPECT_EQ(attributes.maxDynamicSharedSizeBytes, 90 * 1024);
}

using CudaDeviceDeathTest = CudaDeviceTest;

// The emulation runs a graph in any order that its edges allow, and a stream when the host waits for it.
TEST_F(CudaDeviceTest, ABranchComesAfterTheForkAndBeforeTheJoin) {
  stream_.reset();
  device_ = *CreateDevice("cuda", {.side_stream = true});
  stream_ = device_->CreateStream();
  float* const x = *device_->AllocateArray<float>(4);
  float* const beside = *device_->AllocateArray<float>(4);
  float* const own = *device_->AllocateArray<float>(4);
  const auto add = [&](Stream& stream, float* out, const float* in) {
    device_->ops().add(stream, {.out = Dense(out, 1, 4), .x = Dense<const float>(in, 1, 4)});
  };
  const auto submit = [&] {
    add(*stream_, x, x);  // doubled
    Stream& branch = stream_->Fork();
    EXPECT_NE(&branch, stream_.get());
    add(branch, beside, x);
    add(*stream_, own, x);  // one after the fork, one after a kernel
    add(*stream_, own, x);
    stream_->Join();
    add(*stream_, x, beside);  // doubled again, only if the branch read the doubled value
  };
  const auto graph = device_->Capture(*stream_, submit);
  EXPECT_EQ(graph->node_count(), 5u);
  for (int round = 0; round < 16; ++round) {
    const std::vector<float> start = {1, 2, 3, 4};
    const std::vector<float> zero(4);
    device_->CopyToDevice(*stream_, x, start.data(), sizeof(float) * 4);
    device_->CopyToDevice(*stream_, beside, zero.data(), sizeof(float) * 4);
    if (round % 2 == 0) {
      submit();
    } else {
      graph->Replay(*stream_);
    }
    EXPECT_THAT(Get(x, 4), ::testing::ElementsAre(4, 8, 12, 16)) << "round " << round;
  }
}

TEST_F(CudaDeviceDeathTest, AFrozenDeviceNeitherAllocatesNorCaptures) {
  auto& stream = static_cast<CudaStream&>(*stream_);
  void* const scratch = stream.Scratch(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch) % 1024, 0u);
  device_->Freeze();
  EXPECT_EQ(stream.Scratch(1000), scratch);
  EXPECT_DEATH(device_->Allocate(16).IgnoreError(), "device memory allocated after the warm-up");
  EXPECT_DEATH(device_->AllocatePinned(16).IgnoreError(),
               "page-locked host memory allocated after the warm-up");
  EXPECT_DEATH(stream.Scratch(size_t{64} << 20), "for op workspace");
  EXPECT_DEATH(device_->Capture(*stream_, [] {}), "capture after the warm-up");
}

}  // namespace
}  // namespace foredraft
