#include "tests/bench/bench_flags.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace foredraft {
namespace {

bool Set(bool* value, const std::string&) { return *value = true; }
bool Set(int* value, const std::string& text) { return absl::SimpleAtoi(text, value) && *value >= 1; }
bool Set(std::string* value, const std::string& text) {
  *value = text;
  return true;
}
template <class T>
bool Set(std::vector<T>* values, const std::string& text) {
  values->clear();
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    if (!Set(&values->emplace_back(), part)) return false;
  }
  return true;
}

bool IsPositional(const BenchFlag& flag) { return flag.name[0] != '-'; }

[[noreturn]] void Refuse(const char* program, const std::string& argument,
                         std::initializer_list<BenchFlag> flags) {
  const std::string names =
      absl::StrJoin(flags, ", ", [](std::string* out, const BenchFlag& flag) { *out += flag.name; });
  std::fprintf(stderr, "%s: %s: not understood, allowed %s\n", program, argument.c_str(), names.c_str());
  std::exit(2);
}

}  // namespace

std::string ParseBenchFlags(int argc, char** argv, std::initializer_list<BenchFlag> flags) {
  const std::string path = argv[0];
  const std::string program = path.substr(path.rfind('/') + 1);
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    const auto flag = std::find_if(flags.begin(), flags.end(), [&argument](const BenchFlag& known) {
      return argument[0] == '-' ? argument == known.name : IsPositional(known);
    });
    if (flag == flags.end()) Refuse(program.c_str(), argument, flags);
    std::string text = argument;
    if (!IsPositional(*flag) && !std::holds_alternative<bool*>(flag->value)) {
      if (++i == argc) Refuse(program.c_str(), argument + " without a value", flags);
      text = argv[i];
      absl::StrAppend(&argument, " ", text);
    }
    if (!std::visit([&text](auto* value) { return Set(value, text); }, flag->value)) {
      Refuse(program.c_str(), argument, flags);
    }
  }
  return absl::StrCat("build/cpu/bin/", program, argc > 1 ? " " : "",
                      absl::StrJoin(argv + 1, argv + argc, " "));
}

}  // namespace foredraft
