// Any bytes as a configuration file and as a --set: refused with one line, or the effective configuration
// reads back as itself.

#include <cstdint>
#include <string>

#include "base/check.h"
#include "config/config_reader.h"
#include "config/config_yaml.h"

namespace foredraft {
namespace {

void CheckOneLine(const absl::Status& status) {
  CHECK(std::string(status.message()).find('\n') == std::string::npos) << status;
}

void TryFile(const std::string& text) {
  const auto loaded = ParseConfig({.file = "fuzz.yaml", .text = text, .environment = {}, .overrides = {}});
  if (!loaded.ok()) return CheckOneLine(loaded.status());
  const std::string yaml = EmitYaml(loaded->config);
  const auto again = ParseConfig({.file = "again.yaml", .text = yaml, .environment = {}, .overrides = {}});
  CHECK(again.ok()) << again.status() << " in\n" << yaml;
  CHECK_EQ(EmitYaml(again->config), yaml);
}

void TryOverride(const std::string& text) {
  const auto override = ParseOverride(text);
  if (!override.ok()) return CheckOneLine(override.status());
  const auto loaded =
      ParseConfig({.file = "fuzz.yaml", .text = "model: /m", .environment = {}, .overrides = {*override}});
  CheckOneLine(loaded.status());
}

}  // namespace
}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  foredraft::TryFile(text);
  foredraft::TryOverride(text);
  return 0;
}
