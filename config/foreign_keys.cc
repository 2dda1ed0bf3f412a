#include "config/foreign_keys.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "config/decode_buckets.h"
#include "config/yaml_text.h"

namespace foredraft {
namespace {

// Older files have the top-level keys below this block.
constexpr std::string_view kOldBlock = "pytorch_backend_config";

const ForeignKey* FindForeignKey(std::string_view path) {
  for (const ForeignKey& key : ForeignKeys()) {
    if (key.path == ForeignPath(path)) return &key;
  }
  return nullptr;
}

std::string Where(const ForeignKeyGiven& key) {
  return key.line == 0 ? key.source : absl::StrCat(key.source, ":", key.line);
}

// "r1.yaml:3: stream_interval: 10".
std::string Show(const ForeignKeyGiven& key) {
  return absl::StrCat(Where(key), ": ", ShowText(key.path), ": ", ShowYaml(key.value));
}

class Translator {
 public:
  Translator(const std::vector<ForeignKeyGiven>& given, const Config& config)
      : given_(given), config_(config) {}

  ForeignTranslation Translate() {
    for (const ForeignKeyGiven& key : given_) TranslateOne(key, *FindForeignKey(key.path));
    TranslateRanks();
    TranslateGraphLimit();
    return std::move(translation_);
  }

 private:
  void TranslateOne(const ForeignKeyGiven& key, const ForeignKey& row) {
    switch (row.use) {
      case ForeignUse::kSame:
        Become(key, std::string(row.target), key.value);
        break;
      case ForeignUse::kLogic:
        TranslateByValue(key, row);
        break;
      case ForeignUse::kOnly: {
        const std::string value = ShowYaml(key.value);
        const std::vector<std::string> values = absl::StrSplit(std::string(row.values), ", ");
        if (std::find(values.begin(), values.end(), value) == values.end()) {
          Refuse(key, key.path,
                 absl::StrCat("allowed ", std::string(row.values), ": ", std::string(row.text)));
        } else {
          Note(key, "is what foredraft does");
        }
        break;
      }
      case ForeignUse::kIgnored:
        Note(key, absl::StrCat("ignored: ", std::string(row.text)));
        break;
      case ForeignUse::kRefused:
        Refuse(key, key.path, absl::StrCat("not a key of foredraft: ", std::string(row.text)));
        break;
    }
  }

  void TranslateByValue(const ForeignKeyGiven& key, const ForeignKey& row) {
    if (row.path == "tensor_parallel_size" || row.path == "tp_size") {
      Number(key, tensor_ranks_);
    } else if (row.path == "moe_tensor_parallel_size") {
      const std::string value = ShowYaml(key.value);
      if (value == "-1" || value == "null") return Note(key, "is what foredraft does");
      Number(key, expert_columns_);
    } else if (row.path == "moe_expert_parallel_size" || row.path == "ep_size") {
      Number(key, expert_ranks_);
    } else if (row.path == "enable_attention_dp") {
      if (const std::optional<bool> on = Bool(key)) attention_dp_ = {*on, &key};
    } else if (row.path == "use_cuda_graph") {
      if (const std::optional<bool> on = Bool(key)) SwitchGraphs(key, *on);
    } else if (row.path == "enable_overlap_scheduler") {
      if (const std::optional<bool> on = Bool(key)) {
        Become(key, "disable_overlap_scheduler", YAML::Node(*on ? "false" : "true"));
      }
    } else {
      Number(key, graph_limit_);
    }
  }

  template <class T>
  struct Given {
    T value{};
    const ForeignKeyGiven* key = nullptr;  // null: not given
  };

  void Number(const ForeignKeyGiven& key, Given<int>& out) {
    int value = 0;
    if (!key.value.IsScalar() || IsQuoted(key.value) || !absl::SimpleAtoi(key.value.Scalar(), &value) ||
        value < 1) {
      return Refuse(key, std::string(FindForeignKey(key.path)->target), "allowed a number from 1");
    }
    if (out.key != nullptr && out.key->order < key.order) {
      Note(*out.key, absl::StrCat("replaced by ", Show(key)));
    } else if (out.key != nullptr && out.value != value) {
      return Refuse(key, std::string(FindForeignKey(key.path)->target),
                    absl::StrCat("given twice, also as ", Show(*out.key)));
    }
    out = {value, &key};
  }

  std::optional<bool> Bool(const ForeignKeyGiven& key) {
    if (key.value.IsScalar() && !IsQuoted(key.value)) {
      if (key.value.Scalar() == "true") return true;
      if (key.value.Scalar() == "false") return false;
    }
    Refuse(key, std::string(FindForeignKey(key.path)->target), "allowed true, false");
    return std::nullopt;
  }

  // tensor_parallel_size is the number of ranks; the other keys say how attention and experts use them.
  void TranslateRanks() {
    if (tensor_ranks_.key == nullptr) return TranslateOneRank();
    const int ranks = tensor_ranks_.value;
    const bool shared = ranks > 1 && !attention_dp_.value;  // all ranks share every request
    const int columns = expert_columns_.key != nullptr ? expert_columns_.value
                        : expert_ranks_.key != nullptr ? std::max(ranks / expert_ranks_.value, 1)
                                                       : 1;
    const int groups =
        expert_ranks_.key != nullptr ? expert_ranks_.value : std::max(ranks / std::max(columns, 1), 1);
    const ForeignKeyGiven& experts = expert_ranks_.key != nullptr     ? *expert_ranks_.key
                                     : expert_columns_.key != nullptr ? *expert_columns_.key
                                                                      : *tensor_ranks_.key;
    if (groups * columns != ranks) {
      return Refuse(experts, "parallel.moe_ep",
                    absl::StrFormat("allowed moe_expert_parallel_size times moe_tensor_parallel_size %d, "
                                    "tensor_parallel_size: %d times %d is %d",
                                    ranks, groups, columns, groups * columns));
    }
    if (columns > 1 && !shared) {
      return Refuse(experts, "parallel.moe_ep",
                    absl::StrFormat("allowed %d, tensor_parallel_size: with enable_attention_dp a rank holds "
                                    "whole experts",
                                    ranks));
    }
    Become(*tensor_ranks_.key, shared ? "parallel.attention_tp" : "parallel.attention_dp",
           tensor_ranks_.key->value);
    Become(experts, "parallel.moe_ep", YAML::Node(absl::StrCat(groups)));
    if (columns > 1) {
      Become(expert_columns_.key != nullptr ? *expert_columns_.key : experts, "parallel.moe_tp",
             YAML::Node(absl::StrCat(columns)));
    } else if (expert_columns_.key != nullptr) {
      Note(*expert_columns_.key, "is what foredraft does");
    }
    if (attention_dp_.key != nullptr) Note(*attention_dp_.key, "is what foredraft does");
  }

  void TranslateOneRank() {
    for (const Given<int>* const given : {&expert_ranks_, &expert_columns_}) {
      if (given->key == nullptr) continue;
      if (given->value == 1) {
        Note(*given->key, "is what foredraft does on one rank");
      } else {
        Refuse(*given->key, given == &expert_ranks_ ? "parallel.moe_ep" : "parallel.moe_tp",
               "needs the number of ranks: write tensor_parallel_size beside it");
      }
    }
    if (attention_dp_.key != nullptr) Note(*attention_dp_.key, "ignored: there is one rank");
  }

  void SwitchGraphs(const ForeignKeyGiven& key, bool on) {
    translation_.assignments.push_back({.target = "cuda_graph_config",
                                        .value = on ? YAML::Node(YAML::NodeType::Map) : YAML::Node(),
                                        .is_block = true,
                                        .key = key});
    Note(key, on ? "became cuda_graph_config, which is on" : "became cuda_graph_config: null");
  }

  // Steps up to the limit get graphs of the default sizes. Larger steps need a few more graphs, each twice as
  // large as the one before.
  void TranslateGraphLimit() {
    if (graph_limit_.key == nullptr) return;
    const ForeignKeyGiven& key = *graph_limit_.key;
    const int limit = std::min(graph_limit_.value, config_.max_batch_size);
    if (!config_.cuda_graph_config) return Note(key, "ignored: cuda_graph_config is null");
    if (const std::vector<int>& sizes = config_.cuda_graph_config->batch_sizes; !sizes.empty()) {
      return Note(key, "ignored: cuda_graph_config.batch_sizes lists the sizes");
    }
    if (graph_limit_.value > limit) {
      translation_.warnings.push_back(absl::StrCat(Show(key), ": ", CutToSlots(config_)));
    }
    YAML::Node sizes(YAML::NodeType::Sequence);
    for (const int size : DefaultBuckets(limit)) sizes.push_back(size);
    for (int size = 2 * limit; size < config_.max_batch_size; size *= 2) sizes.push_back(size);
    translation_.assignments.push_back(
        {.target = "cuda_graph_config.batch_sizes", .value = sizes, .is_block = false, .key = key});
    Note(key,
         limit == config_.max_batch_size
             ? absl::StrCat("became cuda_graph_config.batch_sizes: 1, 2, 4, ... up to ", limit)
             : absl::StrFormat("became cuda_graph_config.batch_sizes: 1, 2, 4, ... up to %d, then doubling "
                               "up to max_batch_size, %d",
                               limit, config_.max_batch_size));
  }

  void Become(const ForeignKeyGiven& key, const std::string& target, const YAML::Node& value) {
    translation_.assignments.push_back({.target = target, .value = value, .is_block = false, .key = key});
    Note(key, absl::StrCat("became ", target, ": ", ShowYaml(value)));
  }

  void Note(const ForeignKeyGiven& key, const std::string& what) {
    translation_.notes.push_back(absl::StrCat(Show(key), " ", what));
  }

  void Refuse(const ForeignKeyGiven& key, const std::string& target, const std::string& what) {
    translation_.errors.emplace_back(target, absl::InvalidArgumentError(absl::StrCat(Show(key), ", ", what)));
  }

  const std::vector<ForeignKeyGiven>& given_;
  const Config& config_;
  ForeignTranslation translation_;
  Given<int> tensor_ranks_;
  Given<int> expert_ranks_;
  Given<int> expert_columns_;
  Given<bool> attention_dp_;
  Given<int> graph_limit_;
};

}  // namespace

std::string_view ForeignPath(std::string_view path) {
  if (path.starts_with(kOldBlock) && path.substr(kOldBlock.size()).starts_with(".")) {
    path.remove_prefix(kOldBlock.size() + 1);
  }
  return path;
}

const ForeignValue* FindForeignValue(std::string_view path, std::string_view value) {
  for (const ForeignValue& row : ForeignValues()) {
    if (row.path == path && row.value == value) return &row;
  }
  return nullptr;
}

bool IsForeignKey(std::string_view path) { return FindForeignKey(path) != nullptr; }

bool IsForeignBlock(std::string_view path) {
  if (path == kOldBlock) return true;
  const std::string prefix = absl::StrCat(std::string(ForeignPath(path)), ".");
  return std::any_of(ForeignKeys().begin(), ForeignKeys().end(),
                     [&prefix](const ForeignKey& key) { return key.path.starts_with(prefix); });
}

bool SetsBatchSizes(std::string_view path) {
  const ForeignKey* key = FindForeignKey(path);
  return key != nullptr && key->use == ForeignUse::kLogic && key->target == "cuda_graph_config.batch_sizes";
}

ForeignTranslation TranslateForeignKeys(const std::vector<ForeignKeyGiven>& given, const Config& config) {
  return Translator(given, config).Translate();
}

}  // namespace foredraft
