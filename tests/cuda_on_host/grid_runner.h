#pragma once

// Runs the blocks of a grid in a random order on a few host threads.

#include "tests/cuda_on_host/block_runner.h"

namespace cuda_on_host {

// Returns when all blocks have ended. One grid at a time.
void RunGrid(GridWork& work);

}  // namespace cuda_on_host
