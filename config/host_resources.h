#pragma once

// What this process may use of the machine.

#include <cstdint>
#include <string>

#include "config/config.h"

namespace foredraft {

struct HostResources {
  int cores = 1;
  int64_t ram_bytes = 0;
  int64_t swap_bytes = 0;
  int64_t address_space_bytes = 0;  // of one process (ulimit -v); 0: no limit
  std::string granted;  // for people: limits below the machine's resources, with their files; or empty
  std::string admin_address = kNoListener;
};

// The cores this process may run on and the RAM of the machine, or the limits of its cgroups if they are
// lower. The admin socket is in the directory that systemd gives a service or a user; without such a
// directory there is no socket.
HostResources ReadHostResources();

// The lowest limits of the cgroups in `groups`, and of the cgroups around them; 0: none. `groups` is the text
// of /proc/self/cgroup (v1 or v2); the limits' files are below `root` (/sys/fs/cgroup).
struct CgroupLimits {
  double cores = 0;  // CPU time per period, divided by the period
  std::string cores_file;
  int64_t memory_bytes = 0;
  std::string memory_file;
};
CgroupLimits ReadCgroupLimits(const std::string& groups, const std::string& root);

}  // namespace foredraft
