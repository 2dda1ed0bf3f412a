#include "server/output/process_stats.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <string>

namespace foredraft {
namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// Seconds since the epoch at which the machine started.
double BootTime() {
  std::ifstream file("/proc/stat");
  for (std::string name; file >> name; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    double seconds = 0;
    if (name == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

// proc(5): field 22 of /proc/self/stat, in clock ticks since the boot. The name of the program, field 2, is
// in parentheses and may contain anything.
double StartTime() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return 0;
  constexpr int kFieldsBetween = 20;  // spaces: one before each of the fields 3 to 22
  size_t at = name_end;
  for (int i = 0; i < kFieldsBetween && at != std::string::npos; ++i) at = line.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  return BootTime() + std::stod(line.substr(at)) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

int OpenFds() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int count = 0;
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.';
  closedir(folder);
  return count - 1;  // the folder's own
}

}  // namespace

ProcessStats ReadProcessStats() {
  static const double start_time = StartTime();
  ProcessStats stats = {.start_time_seconds = start_time, .open_fds = OpenFds()};
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  stats.cpu_seconds = Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  stats.max_fds = static_cast<int64_t>(limit.rlim_cur);
  std::ifstream memory("/proc/self/statm");
  int64_t virtual_pages = 0, resident_pages = 0;
  memory >> virtual_pages >> resident_pages;
  const int64_t page = sysconf(_SC_PAGESIZE);
  stats.virtual_bytes = virtual_pages * page;
  stats.resident_bytes = resident_pages * page;
  return stats;
}

}  // namespace foredraft
