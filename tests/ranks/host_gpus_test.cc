// What NVML says of a host's GPUs, from one in software.

#include "ranks/host_gpus.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kGiB = int64_t{1} << 30;

std::vector<int64_t> FreeGib() {
  std::vector<int64_t> free;
  for (const HostGpu& gpu : ReadHostGpus()) free.push_back(gpu.free_bytes / kGiB);
  return free;
}

// A library that is already loaded under the name is what dlopen finds.
class HostGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("CUDA_VISIBLE_DEVICES");
    library_ = dlopen(NVML_IN_SOFTWARE, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  void TearDown() override {
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("NVML_FAILS");
    dlclose(library_);
  }

  void* library_ = nullptr;
};

TEST_F(HostGpus, AreAllUpToTheFirstThatIsNotKnown) {
  const std::vector<HostGpu> gpus = ReadHostGpus();
  ASSERT_EQ(gpus.size(), 2);
  EXPECT_EQ(gpus[1].name, "GPU 1 in software");
  EXPECT_EQ(gpus[1].free_bytes, 101 * kGiB);
}

TEST_F(HostGpus, AreThoseThatCudaSees) {
  setenv("CUDA_VISIBLE_DEVICES", "3,GPU-of-index-1,0", 1);
  EXPECT_THAT(FreeGib(), ElementsAre(103, 101, 100));
  setenv("CUDA_VISIBLE_DEVICES", "3,-1,0", 1);
  EXPECT_THAT(FreeGib(), ElementsAre(103));
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_THAT(FreeGib(), IsEmpty());
}

TEST_F(HostGpus, AreNoneWithoutADriver) {
  setenv("NVML_FAILS", "1", 1);
  EXPECT_THAT(FreeGib(), IsEmpty());
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  EXPECT_THAT(FreeGib(), IsEmpty());
}

}  // namespace
}  // namespace foredraft
