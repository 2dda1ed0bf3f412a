#include "tests/bench/thread_times.h"

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <system_error>

namespace foredraft {

std::map<std::string, double> ThreadSeconds() {
  std::map<std::string, double> seconds;
  std::error_code gone;  // a thread may end while we read
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::ifstream name_file(task.path() / "comm"), time_file(task.path() / "schedstat");
    std::string name;
    double nanoseconds = 0;
    if (std::getline(name_file, name) && time_file >> nanoseconds) seconds[name] += nanoseconds * 1e-9;
  }
  return seconds;
}

double ProcessSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace foredraft
