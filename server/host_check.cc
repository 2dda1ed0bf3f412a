#include "server/host_check.h"

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "config/config_fields.h"
#include "config/config_warnings.h"
#include "kernels/device.h"
#include "net/tls.h"
#include "ranks/model_files.h"
#include "ranks/worker_trust.h"
#include "server/api/access.h"
#include "server/request_setup.h"
#include "server/text/tokenizer.h"

namespace foredraft {
namespace {

// Reads the model's files, those that are there, as `serve` does.
absl::Status ReadModelFiles(const Config& config, const ModelConfig& model) {
  std::error_code error;
  const auto has = [&](const char* name) {
    return std::filesystem::exists(config.model + "/" + name, error);
  };
  const bool is_dummy = config.load_format == LoadFormat::kDummy;
  const bool has_weights = has("model.safetensors") || has("model.safetensors.index.json");
  absl::Status status;
  const bool has_tokenizer = std::filesystem::exists(TokenizerFileOf(config.model), error);
  if (is_dummy || has_weights || has_tokenizer) status = ReadTextFiles(config, model).status();
  if (status.ok() && (is_dummy || has_weights)) status = SummarizeModel(config, model).status();
  return status;
}

}  // namespace

void CheckHost(const LoadedConfig& loaded, ConfigErrors& errors) {
  const Config& config = loaded.config;
  // Most texts begin with the key at fault, which may be another key of the same group; `path` is for texts
  // that name only the file.
  const auto add = [&](const std::string& path, const absl::Status& status) {
    if (status.ok()) return;
    const std::string text(status.message());
    const std::string first = text.substr(0, text.find(':'));
    const bool names_key = FindField(first) != nullptr;
    const std::string& key = names_key ? first : path;
    if (errors.Refused(key)) return;
    errors.Add(key, absl::Status(status.code(), absl::StrCat(OriginOf(loaded, key), ": ",
                                                             names_key ? "" : path + ": ", text)));
  };
  add("server.tls.cert", ReadServerPems(config.server.tls).status());
  if (const std::string& file = config.server.auth.tokens_file; !file.empty()) {
    add("server.auth.tokens_file", TokenTable::Read(file).status());
  }
  if (config.parallel.world_size() > 1) {
    add("parallel.token_file", WorkerPortTrust::Load(config).status());
  }
  if (config.backend == Backend::kCpu) {
    add("cpu.isa", CreateDevice("cpu", {.threads = 1, .isa = NameOf(config.cpu.isa)}).status());
  }
}

void CheckModelFiles(const LoadedConfig& loaded, const ModelConfig& model, ConfigErrors& errors) {
  if (errors.Refused("model")) return;
  const absl::Status status = ReadModelFiles(loaded.config, model);
  if (status.ok()) return;
  errors.Add("model", absl::Status(status.code(),
                                   absl::StrCat(OriginOf(loaded, "model"), ": model: ", status.message())));
}

}  // namespace foredraft
