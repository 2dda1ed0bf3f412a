#pragma once

// Computes tokens and drafts of one sequence from its committed tokens alone (docs/speculation.md sections 0,
// 1 and 3, docs/dspark.md), on a cache that is filled with NaN before each call: without slots, plans or
// drafter. So every step of a server must give the same, whatever earlier steps have left. Prompt rows run in
// the prefill form, generated rows in the decode form, as in a server. Greedy. One thread.

#include <cstdint>
#include <vector>

#include "tools/validate_mtp/mtp_device.h"

namespace foredraft {

class CommittedDrafts {
 public:
  // `device` outlives this object. Uses the device's slot 0, which has room for the longest sequence and its
  // drafts.
  explicit CommittedDrafts(MtpDevice& device) : device_(device) {}

  // The first `count` tokens that the target generates after the prompt.
  std::vector<int32_t> Tokens(const std::vector<int32_t>& prompt, int count);

  // The drafts for positions P + 1..P + count, count >= 0. tokens: t_0..t_P, of which the first prompt_len
  // are the prompt, P >= prompt_len. Afterwards the device's cache has the drafter's rows of committed
  // tokens.
  std::vector<int32_t> Drafts(const std::vector<int32_t>& tokens, int prompt_len, int count);

 private:
  std::vector<float> Forward(MtpDevice::Part part, const std::vector<int32_t>& tokens, int first,
                             int prompt_len, const std::vector<float>& previous);

  // OfModule: drafts of an MTP module or a head; target: the target's outputs that it takes. OfBlock: drafts
  // of DSpark's stages.
  std::vector<int32_t> OfModule(const std::vector<int32_t>& tokens, int prompt_len, int count,
                                const std::vector<float>& target);
  std::vector<int32_t> OfBlock(const std::vector<int32_t>& tokens, int count);
  // The token with the largest logit, for one row's output.
  int32_t Best(int level, const std::vector<float>& output);

  MtpDevice& device_;
};

}  // namespace foredraft
