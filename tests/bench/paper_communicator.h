#pragma once

// Rank 0 of a group whose other ranks are on paper: its exchanges take the time that NCCL, or the ranks'
// windows, are predicted to take (launch_model.h), on a paper device's stream (paper_device.h). No rows move.
//
// Owner: RankEngine. Thread: that of the stream.

#include "tests/bench/launch_model.h"
#include "tests/bench/lone_rank.h"

namespace foredraft {

class PaperCommunicator : public LoneRank {
 public:
  // windows: exchanges of few rows go through them, as they do where the GPUs reach each other's memory.
  PaperCommunicator(const GpuModel& gpu, int size, bool windows)
      : LoneRank(size), gpu_(gpu), windows_(windows) {}

  void AllGather(Stream& stream, const AllGatherParams& params) override;
  void AllToAll(Stream& stream, const AllToAllParams& params) override;

 private:
  // Receives `bytes` from each other one of `ranks` ranks.
  void Exchange(Stream& stream, const char* kernel, int64_t bytes, int ranks) const;

  const GpuModel& gpu_;
  const bool windows_;
};

}  // namespace foredraft
