#pragma once

// The life of one worker process: it joins its leader's group, builds its rank, carries out plans, and ends
// with the group. Owner: the worker subcommand.

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "config/config.h"
#include "engine/model/model_config.h"

namespace foredraft {

// Called before other threads exist. From here on
// - SIGKILL ends the process when `parent` ends (0: no parent). UNAVAILABLE: the parent has ended already;
// - the process ignores SIGHUP and the first SIGTERM or SIGINT: the leader gets the same signal, drains and
//   then stops the group. A second one ends the process with exit 1.
absl::Status PrepareWorkerProcess(int rank, pid_t parent);

// Joins the group at `leader` (host:port) and runs `rank` until the group ends. `secret` proves that the
// worker belongs to it; empty: parallel.token_file has the secret, or the certificate suffices. Ok: the
// leader stopped the group. An error says why the rank could not join or start. Once the group is lost, the
// process ends with exit 1 within 3 s and this call need not return.
absl::Status RunWorkerRank(const Config& config, const ModelConfig& model, const std::string& leader,
                           int rank, const std::string& secret);

}  // namespace foredraft
