#include <gtest/gtest.h>
#include <malloc.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/out_of_memory.h"
#include "tests/server/resident_memory.h"

namespace foredraft {
namespace {

using Piece = std::unique_ptr<char[]>;

Piece Filled(size_t bytes) {
  Piece piece(new char[bytes]);
  std::memset(piece.get(), 1, bytes);
  return piece;
}

// A large piece that was freed must not let the thread keep as much of small ones.
TEST(OutOfMemory, AThreadKeepsLittleOfWhatItFrees) {
  KeepMemoryReserve();
  int64_t before = 0, after = 0;
  std::thread([&] {
    Filled(100);  // the thread has its heap
    before = ResidentBytes();
    Filled(size_t{30} << 20).reset();
    std::vector<Piece> small;
    for (int i = 0; i < 400; ++i) small.push_back(Filled(50'000));
    while (!small.empty()) small.pop_back();
    malloc_trim(0);  // gives back all but the end of the heap
    after = ResidentBytes();
  }).join();
  EXPECT_LT(after, before + (6 << 20));
}

}  // namespace
}  // namespace foredraft
