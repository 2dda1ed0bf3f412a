#pragma once

// Compares forwards of the MTP module on the device with the reference, boundary by boundary. One thread.

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tools/validate_mtp/boundary.h"
#include "tools/validate_mtp/kernel_functions.h"
#include "tools/validate_mtp/mtp_device.h"
#include "tools/validate_mtp/mtp_reference.h"

namespace foredraft {

class ModuleCheck {
 public:
  // Reported shapes are those of a forward of `rows` rows. The device and both weights outlive it.
  ModuleCheck(MtpDevice& device, const reference::Weights& exact, const reference::Weights& rounded,
              int rows);

  // Runs the module on the device and in the references; idle rows are skipped. Sequences are slots.
  // `recycled`: rows.previous has the module's own outputs of the row before, for which the full chain takes
  // its own instead; rows.list_rows are rows of the last run that was not recycled.
  MtpChainResult Run(const DeviceRows& rows, bool recycled);

  // Compares the draft of a slot, chosen from the last row that Run computed for the slot.
  void AddDraft(int slot, int draft);

  std::vector<Boundary> Results() const;

 private:
  // The exact reference and the one that rounds.
  struct Pair {
    std::unique_ptr<reference::MtpReference> exact, rounded;

    Pair(const reference::Weights& exact_weights, const reference::Weights& rounded_weights,
         const ModelConfig& config)
        : exact(reference::MtpReference::Create(exact_weights, config)),
          rounded(reference::MtpReference::Create(rounded_weights, config)) {}
    bool NearTie() const { return reference::NearTie(exact->choice(), rounded->choice()); }
  };
  struct Outputs {
    reference::Vector exact, rounded;
  };

  // [R]: the device's list of the positions that each row attends; empty for rows that attend all positions
  // that they see.
  using Lists = std::vector<std::vector<int>>;

  Lists ListsOf(const DeviceRows& rows) const;
  reference::MtpRow RowOf(const DeviceRows& rows, int r, const Lists& lists) const;
  void CompareParts(const DeviceRows& rows);
  void CompareForward(const reference::MtpRow& row, const float* output, const float* logits);
  void CompareSelection(const DeviceRows& rows, int r, const Lists& lists);
  void KeepLists(const DeviceRows& rows, Lists lists);
  void CompareChain(reference::MtpRow row, bool recycled, const float* logits);

  MtpDevice& device_;
  const ModelConfig& config_;
  Pair layer_, forward_, chain_;
  RealBoundary seeded_, projected_, layered_, forwarded_, logits_, full_chain_;
  SelectionBoundary selected_;
  Lists first_lists_;     // of the last run that was not recycled
  double draft_gap_ = 0;  // the largest gap, in units of the logits' root mean square
  int64_t drafts_ = 0, drafts_left_out_ = 0;
  std::map<int, Outputs> own_;  // by slot: the full chain's outputs of the last row
  std::map<int, reference::Vector> own_logits_;
  std::set<int> uncertain_;  // slots whose full chain had a near tie since it last took a target output
};

}  // namespace foredraft
