#pragma once

// The configuration of `foredraft serve MODEL`, which has no file: the keys that follow from the model and
// the machine, as YAML. Environment, --set and the command's flags override them as they override a file.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/config_defaults.h"
#include "config/config_reader.h"
#include "ranks/host_gpus.h"

namespace foredraft {

// Finds the directory or config.json of a model. `model` is a path, or a name on a hub
// ("deepseek-ai/DeepSeek-V3") from which Hugging Face's tools have downloaded it into HF_HUB_CACHE,
// HF_HOME/hub or ~/.cache/huggingface/hub; the revision is the one that the cache's refs/main names.
// NOT_FOUND says how to download it; INVALID_ARGUMENT where a path has another program's files.
absl::StatusOr<std::string> FindModel(const std::string& model);

// Applies FindModel to the key `model`; a model that was given by name keeps the name as served_model_name.
absl::Status ResolveModel(LoadedConfig& loaded);

// The defaults of `serve DIR`: OpenAI's API on loopback; the model's own drafter with draft_policy adaptive;
// the model's longest context, or on the CPU the longest with which a sequence fits the cache. The fewest
// GPUs that hold the model and one such sequence share each request, unless `sources` say something about
// ranks: a person who names a directory waits for one answer. `sources` may have environment and overrides
// only, which override the defaults. gpus: this host's, asked where the backend is CUDA.
absl::StatusOr<ConfigSources> DirectoryConfig(const std::string& model, const HostResources& host,
                                              const std::function<std::vector<HostGpu>()>& gpus,
                                              ConfigSources sources);

}  // namespace foredraft
