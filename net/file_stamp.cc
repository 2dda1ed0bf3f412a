#include "net/file_stamp.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace foredraft {

FileStamp::FileStamp(std::vector<std::string> paths) : paths_(std::move(paths)), stamp_(Read()) {}

bool FileStamp::Changed() {
  std::string stamp = Read();
  if (stamp == stamp_) return false;
  stamp_ = std::move(stamp);
  return true;
}

std::string FileStamp::Read() const {
  std::string stamp;
  for (const std::string& path : paths_) {
    struct stat file {};
    if (path.empty() || stat(path.c_str(), &file) != 0) continue;
    absl::StrAppend(&stamp, file.st_dev, ",", file.st_ino, ",", file.st_size, ",", file.st_mtim.tv_sec, ",",
                    file.st_mtim.tv_nsec, ";");
  }
  return stamp;
}

}  // namespace foredraft
