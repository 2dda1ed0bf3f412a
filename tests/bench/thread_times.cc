#include "tests/bench/thread_times.h"

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

}  // namespace foredraft
