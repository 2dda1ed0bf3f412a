#pragma once

// Tokens and drafts of one sequence from its committed tokens alone (docs/speculation.md sections 0, 1 and
// 3, docs/dspark.md), on a cache that is filled with NaN before each: no slots, no plans, no drafter. So it
// is what every step of a server has to give, whatever the steps before it left behind. Prompt rows run in
// the prefill form, generated rows in the decode form, as in a server. Greedy. One thread.

#include <cstdint>
#include <vector>

#include "tools/validate_mtp/mtp_device.h"

namespace foredraft {

class CommittedDrafts {
 public:
  // The device outlives it. Uses its slot 0, which has room for the longest sequence and its drafts.
  explicit CommittedDrafts(MtpDevice& device) : device_(device) {}

  // The first `count` tokens that the target generates behind the prompt.
  std::vector<int32_t> Tokens(const std::vector<int32_t>& prompt, int count);

  // tokens: t_0..t_P, the first prompt_len of them the prompt, P >= prompt_len. The drafts for positions P +
  // 1..P + count, count >= 0; what the drafter keeps of committed tokens is then in the device's cache.
  std::vector<int32_t> Drafts(const std::vector<int32_t>& tokens, int prompt_len, int count);

 private:
  std::vector<float> Forward(MtpDevice::Part part, const std::vector<int32_t>& tokens, int first,
                             int prompt_len, const std::vector<float>& previous);

  // The drafts of a model that drafts with an MTP module or a head, and of one with DSpark's stages. target:
  // the target's outputs that the module takes.
  std::vector<int32_t> OfModule(const std::vector<int32_t>& tokens, int prompt_len, int count,
                                const std::vector<float>& target);
  std::vector<int32_t> OfBlock(const std::vector<int32_t>& tokens, int count);
  // The best token of one row's output.
  int32_t Best(int level, const std::vector<float>& output);

  MtpDevice& device_;
};

}  // namespace foredraft
