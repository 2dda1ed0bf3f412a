#include "client/commands.h"

#include <cstdio>
#include <string>

#include "base/visible_text.h"

namespace foredraft {

int Fail(const absl::Status& status) {
  std::string line(status.message());
  for (char& letter : line) {
    if (letter == '\n') letter = ' ';
  }
  fprintf(stderr, "foredraft: %s\n", VisibleText(line).c_str());
  return 1;
}

}  // namespace foredraft
