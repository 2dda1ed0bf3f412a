#include "config/host_resources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace foredraft {
namespace {

using testing::EndsWith;

// Groups of both versions, those around the process's own, and of a container, where the mount is the group.
class Cgroups : public testing::Test {
 protected:
  Cgroups() { std::filesystem::remove_all(root_); }
  ~Cgroups() override { std::filesystem::remove_all(root_); }

  void Write(const char* file, const char* text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  CgroupLimits Read(const char* groups) const { return ReadCgroupLimits(groups, root_.string()); }

 private:
  const std::filesystem::path root_ = std::filesystem::path(testing::TempDir()) / "cgroups";
};

TEST_F(Cgroups, MemoryIsTheLowestOnTheWay) {
  Write("system.slice/memory.max", "8589934592\n");
  Write("system.slice/foredraft.service/memory.max", "max\n");
  Write("memory/docker/memory.limit_in_bytes", "4294967296\n");
  Write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Read("0::/system.slice/foredraft.service\n").memory_bytes, int64_t{8} << 30);
  const CgroupLimits docker = Read("5:devices:/docker/a\n4:memory:/docker/a\n0::/\n");
  EXPECT_EQ(docker.memory_bytes, int64_t{4} << 30);
  EXPECT_THAT(docker.memory_file, EndsWith("memory/docker/memory.limit_in_bytes"));
  EXPECT_EQ(Read("0::/user.slice\n").memory_bytes, 0);
  Write("memory.max", "1073741824\n");
  EXPECT_EQ(Read("0::/\n").memory_bytes, int64_t{1} << 30);
  EXPECT_EQ(Read("0::/a/path/of/the/host\n").memory_bytes, int64_t{1} << 30);
}

// systemd's CPUQuota is the limit of a group below the root.
TEST_F(Cgroups, CoresAreTheLowestOnTheWay) {
  Write("system.slice/cpu.max", "max 100000\n");
  Write("system.slice/foredraft.service/cpu.max", "350000 100000\n");
  Write("cpu/kubepods/cpu.cfs_quota_us", "800000\n");
  Write("cpu/kubepods/cpu.cfs_period_us", "100000\n");
  Write("cpu/kubepods/pod/cpu.cfs_quota_us", "-1\n");
  Write("cpu/kubepods/pod/cpu.cfs_period_us", "100000\n");
  const CgroupLimits service = Read("0::/system.slice/foredraft.service\n");
  EXPECT_EQ(service.cores, 3.5);
  EXPECT_THAT(service.cores_file, EndsWith("/system.slice/foredraft.service/cpu.max"));
  EXPECT_EQ(Read("0::/system.slice\n").cores, 0);
  EXPECT_EQ(Read("7:cpu,cpuacct:/kubepods/pod\n0::/\n").cores, 8);
  EXPECT_EQ(Read("7:cpuset:/kubepods/pod\n").cores, 0);
  Write("cpu.max", "50000 100000\n");
  EXPECT_EQ(Read("0::/system.slice/foredraft.service\n").cores, 0.5);
  Write("cpu.max", "50000\n");  // no period
  EXPECT_EQ(Read("0::/\n").cores, 0);
}

TEST(HostResources, AreSane) {
  const HostResources host = ReadHostResources();
  EXPECT_GE(host.cores, 1);
  EXPECT_GT(host.ram_bytes, int64_t{1} << 26);
}

}  // namespace
}  // namespace foredraft
