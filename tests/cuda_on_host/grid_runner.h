#pragma once

// Runs the blocks of a grid in a random order on a few host threads.

#include "tests/cuda_on_host/block_runner.h"

namespace cuda_on_host {

// True when all blocks have ended. False: some wait for another rank, and the next call goes on with them.
// One grid at a time.
bool RunGrid(GridWork& work);

}  // namespace cuda_on_host
