#pragma once

// Notices that files of the configuration have changed: written in place, replaced, removed, also behind a
// symbolic link. Not thread-safe.

#include <string>
#include <vector>

namespace foredraft {

class FileStamp {
 public:
  // Make it before the files are read: a change after that is then noticed. Empty paths are left out.
  explicit FileStamp(std::vector<std::string> paths);

  // Whether a file has changed since the construction, or since Changed last returned true.
  bool Changed();

 private:
  std::string Read() const;

  const std::vector<std::string> paths_;
  std::string stamp_;
};

}  // namespace foredraft
