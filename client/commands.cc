#include "client/commands.h"

#include <cstdio>
#include <string>

namespace foredraft {

int Fail(const absl::Status& status) {
  std::string line(status.message());
  for (char& letter : line) {
    if (letter == '\n') letter = ' ';
  }
  fprintf(stderr, "foredraft: %s\n", line.c_str());
  return 1;
}

}  // namespace foredraft
