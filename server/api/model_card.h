#pragma once

// What the API tells clients about the served model, independent of the wire. The thinking tokens are not
// here: a reload can change them (RequestValidator::thinking).

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/sampling_params.h"

namespace foredraft {

struct ModelCard {
  std::string name;
  std::string architecture;  // "DeepseekV3ForCausalLM"
  std::string model_type;    // "deepseek_v3"
  std::string model_path;  // absolute; the directory of config.json and, if the model has one, tokenizer.json
  int vocab_size = 0;
  int max_seq_len = 0;
  int max_batch_size = 0;  // decode slots of a rank
  int tokens_per_block = 0;
  int mtp_modules = 0;    // in the checkpoint
  int max_draft_len = 0;  // drafts per step at most; 0 = no speculation
  std::vector<int32_t> eos_ids;
  int32_t bos_id = -1;              // -1 = none
  SamplingParams default_sampling;  // for fields that a request leaves out; its seed is not used
  std::string backend;
  std::string numerics_class;
  std::string version;
};

}  // namespace foredraft
