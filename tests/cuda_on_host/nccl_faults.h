#pragma once

// What tests make NCCL on the host (nccl.cc) do. Thread-safe.

#include <nccl.h>

#include <string>

namespace cuda_on_host {

// How often ncclCommGetAsyncError says ncclInProgress before a group of calls takes effect; 2 by default.
inline constexpr int kNcclNeverSettles = 1 << 30;
void SetNcclPolls(int polls);

// The next call of `function` ("ncclGroupEnd") by a thread whose device is `device` returns `result`. For
// "a group's launch": the next group of calls ends in this asynchronous error.
inline constexpr char kNcclLaunch[] = "a group's launch";
void FailNccl(const std::string& function, int device, ncclResult_t result);

// From now on ncclCommGetAsyncError reports this for the rank on `device`, as after a network error.
void SetNcclAsyncError(int device, ncclResult_t result);

// Back to no faults and 2 polls. No communicator may exist.
void ResetNccl();

// Channels that the last communicator may use: ncclConfig_t::maxCTAs.
int NcclMaxCtas();

}  // namespace cuda_on_host
