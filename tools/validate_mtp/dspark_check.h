#pragma once

// Compares DSpark's context and blocks on the device with the reference, boundary by boundary. One thread.

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tools/validate_mtp/boundary.h"
#include "tools/validate_mtp/dspark_reference.h"
#include "tools/validate_mtp/mtp_device.h"

namespace foredraft {

class DSparkCheck {
 public:
  // Reported shapes are those of forwards of `requests` sequences with `draft_len` drafts. The device and
  // both weights outlive it.
  DSparkCheck(MtpDevice& device, const reference::Weights& exact, const reference::Weights& rounded,
              int requests, int draft_len);

  // Called after the device has run the target on these rows: compares what that forward wrote for the stages
  // (taps, main_x, and the keys in the cache). Idle rows are skipped. Sequences are slots.
  void AddContext(const DeviceRows& rows);

  // Runs the stages over blocks, G adjacent rows each, and gives the logits of all rows, [R, V].
  std::vector<float> RunBlocks(const DeviceRows& blocks);

  // The device's logits of the token after `before`: `logits`, a block's row, plus the bias.
  std::vector<float> AddBias(std::vector<float> logits, int before);
  // Compares the draft that the device chose after token `before` from row `row` of the slot's block.
  void AddDraft(int slot, int row, int before, int draft);

  std::vector<Boundary> Results() const;

 private:
  using Rows = std::map<int, reference::Vector>;  // by position
  // The keys by position, for each slot and stage.
  using Keys = std::map<std::pair<int, int>, Rows>;

  // A block in the references that compute all stages themselves from the target's layers: its streams after
  // the stages so far.
  struct Chain {
    reference::BlockStreams exact, rounded;
    std::set<int> uncertain;  // rows for which a near tie of experts may have changed the input or the output
  };

  // A row of the target's forward: main_x of the device, and of the references, which begin at the tapped
  // layers.
  struct ContextRow {
    int slot = 0, position = 0;
    reference::Vector main_x, exact_main_x, rounded_main_x;
  };
  // Compares row r of the forward and sets the references' main_x in `row`. taps: the device's. tapped: the
  // layers' outputs.
  void CompareTaps(int r, const reference::Vector& taps, const std::vector<std::vector<float>>& tapped,
                   ContextRow& row);
  void CompareKey(const ContextRow& row, int stage, const reference::Vector& key);
  std::vector<reference::Vector> ContextOf(const Keys& keys, int slot, int stage, int position) const;
  reference::BlockStreams StreamsOf(const DeviceRows& blocks, int first) const;
  void CompareStage(int stage, const DeviceRows& blocks, const std::vector<float>& outputs);
  void AdvanceChain(int stage, int slot, int position);
  void CompareLogits(const DeviceRows& blocks, const std::vector<float>& logits);

  MtpDevice& device_;
  const ModelConfig& config_;
  const int block_size_;
  reference::DSparkReference exact_, rounded_;
  Keys device_keys_, exact_keys_, rounded_keys_;
  std::map<int, Chain> chains_;                    // by slot
  std::map<int, reference::BlockStreams> logits_;  // by slot: [G][V], of `chains_`
  RealBoundary taps_, main_x_, context_keys_, stage_, base_logits_, bias_, full_block_;
  double draft_gap_ = 0;
  int64_t drafts_ = 0, drafts_left_out_ = 0;
};

}  // namespace foredraft
