#include "config/host_resources.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace foredraft {
namespace {

using std::filesystem::path;

// The next number of a file; 0 where there is none ("max", -1, no such file).
int64_t ReadLimit(std::ifstream& file) {
  int64_t value = 0;
  return file >> value ? std::max<int64_t>(value, 0) : 0;
}

int64_t LimitIn(const path& file) {
  std::ifstream text(file);
  return ReadLimit(text);
}

// Calls visit(folder, is_v2) for each cgroup of the process that may have limits of `controller`, and for the
// groups around it.
template <class Visit>
void ForEachGroup(const std::string& groups, const std::string& root, std::string_view controller,
                  const Visit& visit) {
  std::istringstream lines(groups);
  // "4:cpu,cpuacct:/user/job" of v1, "0::/user/job" of v2
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3) continue;
    const bool is_v2 = parts[1].empty();
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (!is_v2 && std::ranges::count(controllers, controller) == 0) continue;
    // In a container the mount is the group itself; the groups around it do not exist there.
    const path mount = is_v2 ? path(root) : path(root) / controller;
    for (path group = parts[2];; group = group.parent_path()) {
      visit(mount / group.relative_path(), is_v2);
      if (!group.has_relative_path()) break;
    }
  }
}

std::string ReadText(const char* file) {
  std::ifstream text(file);
  return {std::istreambuf_iterator<char>(text), {}};
}

// RUNTIME_DIRECTORY may have several directories, separated by colons.
std::string AdminAddress() {
  if (const char* service = std::getenv("RUNTIME_DIRECTORY"); service != nullptr && *service == '/') {
    const std::string first(service, std::strcspn(service, ":"));
    return absl::StrCat("unix:", first, "/admin.sock");
  }
  if (const char* user = std::getenv("XDG_RUNTIME_DIR"); user != nullptr && *user == '/') {
    return absl::StrCat("unix:", user, "/foredraft.sock");
  }
  return kNoListener;
}

std::string Gib(int64_t bytes) { return absl::StrFormat("%.1f", static_cast<double>(bytes) / (1 << 30)); }

// Applies the limits that are lower than what `host` has.
void TakeLimits(const CgroupLimits& limits, HostResources& host) {
  std::vector<std::string> granted;
  if (limits.cores > 0 && limits.cores < host.cores) {
    granted.push_back(absl::StrFormat("%.4g of %d cores (%s)", limits.cores, host.cores, limits.cores_file));
    host.cores = std::max(1, static_cast<int>(limits.cores));
  }
  if (limits.memory_bytes > 0 && limits.memory_bytes < host.ram_bytes) {
    granted.push_back(absl::StrFormat("%s of %s GiB (%s)", Gib(limits.memory_bytes), Gib(host.ram_bytes),
                                      limits.memory_file));
    host.ram_bytes = limits.memory_bytes;
  }
  host.granted = absl::StrJoin(granted, ", ");
}

}  // namespace

CgroupLimits ReadCgroupLimits(const std::string& groups, const std::string& root) {
  CgroupLimits limits;
  ForEachGroup(groups, root, "cpu", [&](const path& group, bool is_v2) {
    const path file = group / (is_v2 ? "cpu.max" : "cpu.cfs_quota_us");
    std::ifstream text(file);  // of v2 "quota period"; in microseconds
    const int64_t quota = ReadLimit(text);
    const int64_t period = is_v2 ? ReadLimit(text) : LimitIn(group / "cpu.cfs_period_us");
    if (quota == 0 || period == 0) return;
    const double cores = static_cast<double>(quota) / static_cast<double>(period);
    if (limits.cores > 0 && limits.cores <= cores) return;
    limits.cores = cores;
    limits.cores_file = file;
  });
  ForEachGroup(groups, root, "memory", [&](const path& group, bool is_v2) {
    const path file = group / (is_v2 ? "memory.max" : "memory.limit_in_bytes");
    const int64_t bytes = LimitIn(file);
    if (bytes == 0 || (limits.memory_bytes > 0 && limits.memory_bytes <= bytes)) return;
    limits.memory_bytes = bytes;
    limits.memory_file = file;
  });
  return limits;
}

HostResources ReadHostResources() {
  HostResources host;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) host.cores = std::max(CPU_COUNT(&cores), 1);
  host.ram_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  TakeLimits(ReadCgroupLimits(ReadText("/proc/self/cgroup"), "/sys/fs/cgroup"), host);
  struct sysinfo system {};
  if (sysinfo(&system) == 0) host.swap_bytes = static_cast<int64_t>(system.totalswap) * system.mem_unit;
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    host.address_space_bytes = static_cast<int64_t>(space.rlim_cur);
  }
  host.admin_address = AdminAddress();
  return host;
}

}  // namespace foredraft
