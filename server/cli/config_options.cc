#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/cli/commands.h"
#include "server/cli/directory_config.h"

namespace foredraft {
namespace {

std::map<std::string, std::string> ReadEnvironment() {
  std::map<std::string, std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals != nullptr) environment.emplace(std::string(*entry, equals - *entry), equals + 1);
  }
  return environment;
}

}  // namespace

void ConfigOptions::Add(CLI::App& command) {
  command.add_option("--config", file, "configuration file (YAML)")->required()->type_name("F");
  AddSets(command);
}

void ConfigOptions::AddWithModel(CLI::App& command, bool required) {
  CLI::App* const source = command.add_option_group("source", "What to serve: one of");
  source->add_option(
      "MODEL", model,
      "checkpoint directory, or its name in the local Hugging Face cache; the other keys follow from the "
      "model and the machine (check-config MODEL shows them)");
  source->add_option("--config", file, "configuration file (YAML)")->type_name("F");
  source->require_option(required ? 1 : 0, 1);
  AddSets(command);
  constexpr struct {
    const char* flag;
    const char* path;
    const char* help;
  } kFlags[] = {{"--backend", "backend", "cpu or cuda"},
                {"--listen", "server.grpc_address", "address of the gRPC API"},
                {"--http", "server.http_address", "address of OpenAI's API"},
                {"--metrics", "server.metrics_address", "address of metrics and probes"},
                {"--max-seq-len", "max_seq_len", "longest context, in tokens"},
                {"--max-batch-size", "max_batch_size", "most requests in a step"},
                {"--drafts", "speculative_config.max_draft_len", "most drafts per step; 0: none"}};
  for (const auto& [flag, path, help] : kFlags) {
    command
        .add_option_function<std::string>(
            flag,
            [this, path = path](const std::string& value) {
              flags.push_back({path, value});
            },
            absl::StrCat(help, ": --set ", path, "="))
        ->type_name("V");
  }
  command
      .add_option("--tp", tp,
                  "ranks that share each request and, unless --ep is given, spread the experts: --set "
                  "parallel.attention_tp= and moe_ep=")
      ->check(CLI::IsMember({1, 2, 4, 8}))
      ->type_name("N");
  command
      .add_option(
          "--ep", ep,
          "ranks over which the experts are spread; with --tp, the ranks beyond them cut the experts' "
          "columns: --set parallel.moe_ep= and moe_tp=")
      ->check(CLI::IsMember({1, 2, 4, 8}))
      ->type_name("N");
}

absl::Status ConfigOptions::AddRanks(std::vector<ConfigOverride>& overrides) const {
  const auto set = [&overrides](const char* key, int value) {
    overrides.push_back({absl::StrCat("parallel.", key), absl::StrCat(value)});
  };
  if (tp == 0) {
    if (ep > 0) set("moe_ep", ep);
    return absl::OkStatus();
  }
  const int spread = ep > 0 ? ep : tp;
  if (tp % spread != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--ep: ", ep, ", allowed: what divides --tp ", tp));
  }
  set("attention_tp", tp);
  set("moe_ep", spread);
  set("moe_tp", tp / spread);
  return absl::OkStatus();
}

void ConfigOptions::AddSets(CLI::App& command) {
  command
      .add_option("--set", sets,
                  "override a key: a.b=value; repeatable, takes precedence over environment and file")
      ->type_name("a.b=c")
      ->allow_extra_args(false)
      ->check([](const std::string& text) {
        const absl::StatusOr<ConfigOverride> parsed = ParseOverride(text);
        return parsed.ok() ? std::string() : std::string(parsed.status().message());
      });
}

absl::StatusOr<ConfigSources> ConfigOptions::Sources() const {
  std::vector<ConfigOverride> overrides;
  for (const std::string& text : sets) {
    absl::StatusOr<ConfigOverride> parsed = ParseOverride(text);
    if (!parsed.ok()) return parsed.status();
    overrides.push_back(*std::move(parsed));
  }
  overrides.insert(overrides.end(), flags.begin(), flags.end());
  if (absl::Status ranks = AddRanks(overrides); !ranks.ok()) return ranks;
  if (model.empty()) return ReadSources(file, ReadEnvironment(), std::move(overrides));
  return DirectoryConfig(model, ReadHostResources(), ReadHostGpus,
                         {.environment = ReadEnvironment(), .overrides = std::move(overrides)});
}

absl::StatusOr<LoadedConfig> ConfigOptions::Read() const {
  const absl::StatusOr<ConfigSources> sources = Sources();
  if (!sources.ok()) return sources.status();
  absl::StatusOr<LoadedConfig> loaded = ParseConfig(*sources);
  if (!loaded.ok()) return loaded;
  if (absl::Status found = ResolveModel(*loaded); !found.ok()) return found;
  return loaded;
}

}  // namespace foredraft
