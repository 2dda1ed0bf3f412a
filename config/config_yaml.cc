#include "config/config_yaml.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_format.h"
#include "config/config_fields.h"

namespace foredraft {
namespace {

std::vector<std::string_view> BlocksOf(std::string_view path) {
  std::vector<std::string_view> blocks;
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1)) {
    blocks.push_back(path.substr(0, dot));
  }
  return blocks;
}

}  // namespace

std::string EmitYaml(const Config& config) {
  std::string yaml;
  std::vector<std::string_view> open;  // blocks whose heading is written
  for (const ConfigField& field : ConfigFields()) {
    const std::vector<std::string_view> blocks = BlocksOf(field.path);
    bool present = true;
    for (size_t depth = 0; depth < blocks.size(); ++depth) {
      present = present && BlockPresent(config, blocks[depth]);
      if (std::find(open.begin(), open.end(), blocks[depth]) != open.end()) continue;
      open.push_back(blocks[depth]);
      yaml += absl::StrFormat("%s%s:%s\n", std::string(2 * depth, ' '), LastPart(blocks[depth]),
                              present ? "" : " null");
    }
    if (present) {
      yaml += absl::StrFormat("%s%s: %s\n", std::string(2 * blocks.size(), ' '), LastPart(field.path),
                              ShowField(field, config));
    }
  }
  return yaml;
}

// Without speculative_config the modules are not loaded: turning it on needs a restart, turning it off is
// draft length 0, with the modules kept warm.
ConfigDifference ReloadableDifference(const Config& started, const Config& current, const Config& next) {
  ConfigDifference difference;
  const auto draft_len = [](const Config& config) {
    return config.speculative_config ? config.speculative_config->max_draft_len : 0;
  };
  const bool graphs_switched = started.cuda_graph_config.has_value() != next.cuda_graph_config.has_value();
  if (graphs_switched) difference.need_restart.emplace_back("cuda_graph_config");
  // The masks' memory is reserved at the start.
  const bool constraints_stay_off = !started.constraints.has_value();
  if (constraints_stay_off && next.constraints) difference.need_restart.emplace_back("constraints");
  if (!constraints_stay_off && current.constraints.has_value() != next.constraints.has_value()) {
    difference.reloaded.emplace_back("constraints");
  }
  for (const ConfigField& field : ConfigFields()) {
    const std::string_view block = BlockOf(field.path);
    bool needs_restart = field.change == ConfigChange::kRestart;
    const bool was_off = block == "constraints" && !current.constraints.has_value();
    bool changed = ShowField(field, needs_restart || was_off ? started : current) != ShowField(field, next);
    if (field.path == "speculative_config.max_draft_len") {
      changed = draft_len(next) != draft_len(current);
      needs_restart = draft_len(next) > draft_len(started);
    } else if (block == "speculative_config") {
      changed = changed && next.speculative_config && started.speculative_config;
      // The steps that cut drafts are captured at the start.
      needs_restart =
          field.path == "speculative_config.draft_policy" && CutsDrafts(next) && !CutsDrafts(started);
    } else if (block == "cuda_graph_config") {
      changed = changed && !graphs_switched;
    } else if (block == "constraints") {
      changed = changed && next.constraints && !constraints_stay_off;
    }
    if (changed) (needs_restart ? difference.need_restart : difference.reloaded).emplace_back(field.path);
  }
  return difference;
}

}  // namespace foredraft
