#pragma once

// Reads <name>_model.golden.json and its .bin: logits of transformers in float32 (make_model_golden.py,
// make_dspark_golden.py). A malformed golden fails a CHECK that names the file.

#include <bit>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"

namespace foredraft {

struct GoldenMtp {
  int module;                 // from 1
  int first_position;         // = module
  std::vector<float> logits;  // [ids.size() - first_position, vocab_size]
};

// What DSpark drafts from ids[0 .. position] of a prompt, by reference_dspark.py in float64.
struct GoldenBlock {
  int position;                     // of the last committed token, whose row the target has not run
  int prompt_len;                   // <= position: ids to take as the prompt, the others as given tokens
  std::vector<float> logits;        // [block size, vocab_size]: U, without the Markov head's bias
  std::vector<int32_t> drafts;      // greedy, for position + 1 and so on
  std::vector<double> margins;      // a draft's logit minus the second one, over the rms of U + bias
  std::vector<double> confidences;  // of each draft
  double closest_choice;            // the smallest lead of an expert that a router of the block chose
};

struct GoldenPrompt {
  std::string name;
  std::vector<int32_t> ids;
  std::vector<float> logits;        // [ids.size(), vocab_size]
  std::vector<GoldenMtp> mtp;       // fewer than the model has where the prompt is short, or to save space
  std::vector<GoldenBlock> blocks;  // only of checkpoints with DSpark
};

struct ModelGolden {
  std::string checkpoint;  // folder, from the root of the repository
  int vocab_size = 0;
  // transformers' own distance when it computes in BF16: largest difference over the reference's root mean
  // square.
  double bfloat16_mean_error = 0;
  double bfloat16_max_error = 0;
  double bfloat16_argmax_agreement = 0;
  // The distances of the blocks' logits when the reference computes in BF16. 0: no blocks.
  double blocks_bfloat16_mean_error = 0;
  double blocks_bfloat16_max_error = 0;
  std::vector<GoldenPrompt> prompts;
};

// `name`: abacus, grouped, fp8, int4, fp4, a family of deepseek_v3_families.h. The working directory is the
// root of the repository.
inline ModelGolden ReadModelGolden(const std::string& name) {
  static_assert(std::endian::native == std::endian::little);
  const std::string folder = "tests/golden/";
  const std::string path = folder + name + "_model.golden.json";
  std::ifstream json_file(path);
  const nlohmann::json json = nlohmann::json::parse(json_file, nullptr, /*allow_exceptions=*/false);
  CHECK(json.is_object()) << path;
  std::ifstream data_file(folder + json["data"].get<std::string>(), std::ios::binary);
  const std::string data{std::istreambuf_iterator<char>(data_file), std::istreambuf_iterator<char>()};
  CHECK_EQ(data.size(), json["float_count"].get<size_t>() * sizeof(float)) << path;

  ModelGolden golden;
  golden.checkpoint = json["checkpoint"].get<std::string>();
  golden.vocab_size = json["vocab_size"].get<int>();
  const nlohmann::json& rounded = json["bfloat16"];
  golden.bfloat16_mean_error = rounded["max_error_over_rms"]["mean"].get<double>();
  golden.bfloat16_max_error = rounded["max_error_over_rms"]["max"].get<double>();
  golden.bfloat16_argmax_agreement = rounded["argmax_agreement"].get<double>();
  if (json.contains("blocks_bfloat16")) {
    const nlohmann::json& errors = json["blocks_bfloat16"]["max_error_over_rms"];
    golden.blocks_bfloat16_mean_error = errors["mean"].get<double>();
    golden.blocks_bfloat16_max_error = errors["max"].get<double>();
  }
  const auto floats = [&](const nlohmann::json& offset, size_t rows) {
    const size_t begin = offset.get<size_t>() * sizeof(float);
    std::vector<float> values(rows * golden.vocab_size);
    CHECK_LE(begin + values.size() * sizeof(float), data.size()) << path;
    data.copy(reinterpret_cast<char*>(values.data()), values.size() * sizeof(float), begin);
    return values;
  };
  for (const nlohmann::json& entry : json["prompts"]) {
    GoldenPrompt prompt;
    prompt.name = entry["name"].get<std::string>();
    prompt.ids = entry["ids"].get<std::vector<int32_t>>();
    prompt.logits = floats(entry["logits_offset"], prompt.ids.size());
    for (const nlohmann::json& module : entry["mtp"]) {
      const int first = module["first_position"].get<int>();
      prompt.mtp.push_back(
          {module["module"].get<int>(), first, floats(module["offset"], prompt.ids.size() - first)});
    }
    for (const nlohmann::json& block : entry.value("blocks", nlohmann::json::array())) {
      GoldenBlock& read = prompt.blocks.emplace_back();
      read.position = block["position"].get<int>();
      read.prompt_len = block["prompt_len"].get<int>();
      read.drafts = block["drafts"].get<std::vector<int32_t>>();
      read.logits = floats(block["offset"], read.drafts.size());
      read.margins = block["margins"].get<std::vector<double>>();
      read.confidences = block["confidences"].get<std::vector<double>>();
      read.closest_choice = block["closest_choice"].get<double>();
    }
    golden.prompts.push_back(std::move(prompt));
  }
  return golden;
}

}  // namespace foredraft
