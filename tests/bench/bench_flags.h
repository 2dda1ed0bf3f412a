#pragma once

// The command lines of the programs in tests/bench.

#include <initializer_list>
#include <string>
#include <variant>
#include <vector>

namespace foredraft {

// A name that begins with "-" is a flag: a bool takes no value, the others take the next argument. Any other
// name is a positional argument. An int is at least 1; lists are separated by commas.
struct BenchFlag {
  const char* name;
  std::variant<bool*, int*, std::string*, std::vector<int>*, std::vector<std::string>*> value;
};

// Flags that are not given keep their values. Ends the program with exit code 2 and one line on stderr for
// an argument that is not allowed. Returns the command as given, for reports: "build/cpu/bin/ops_bench --rows
// 1,4".
std::string ParseBenchFlags(int argc, char** argv, std::initializer_list<BenchFlag> flags);

}  // namespace foredraft
