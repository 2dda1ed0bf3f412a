// What an mla_decode over FP8 keys takes for granted (tests/gpu/fp8_probe.h): the rate of E4M3 products with
// both operands in shared memory, and how long keys take to be turned into values. A product with P sums over
// keys, and wgmma reads 8-bit operands only with what it sums over in adjacent bytes; a tile of keys has
// latent columns there.

#include "tests/gpu/fp8_probe.h"

namespace foredraft::cuda {
namespace {

template <int outputs>
struct SharedProduct {
  static constexpr int n = outputs;
  __device__ explicit SharedProduct(ProductShared<n>& tiles)
      : a(KMajorDescriptor(tiles.a)), b(KMajorDescriptor(tiles.b)) {}
  __device__ __forceinline__ void Multiply(float (&d)[n / 2], int group) const {
    WgmmaF8(d, a + group * kDescriptor32Bytes, b + group * kDescriptor32Bytes, /*add=*/true);
  }
  uint64_t a, b;
};

TEST(Probe, E4m3ProductsOf64Keys) { ProbeProducts<SharedProduct<64>>("e4m3 m64n64k32"); }
TEST(Probe, E4m3ProductsOf128Keys) { ProbeProducts<SharedProduct<128>>("e4m3 m64n128k32"); }

// ---- keys turned into values ----

constexpr int kKeys = 64, kLatent = 512;

struct TurnShared {
  alignas(1024) uint8_t keys[kLatent / kTileRowBytes][kKeys * kTileRowBytes];  // as TMA loads them
  // A row is a latent column's 64 values, and as many of the next tile of keys.
  alignas(1024) uint8_t values[kLatent * kTileRowBytes];
};

struct TurnParams {
  const uint8_t* keys;  // [4][64][128]: columns 128 i .. of the keys
  uint8_t* values;      // [512][64]
  int32_t rounds;
};

// Where the key is that byte `place` of a row of values has. Of each 16 keys, thread t of four adjacent ones
// gets 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 from ldmatrix, in registers of its own, as it has P's columns in its
// sums of q k^T: bytes 4 t .. 4 t + 3 of operand a. So neither P nor the values change threads.
constexpr int KeyAt(int place) {
  const int t = place % 16 / 4, i = place % 4;
  return place / 16 * 16 + 2 * t + i % 2 + i / 2 * 8;
}

// Warp w turns latent columns [128 w, 128 w + 128).
__device__ __forceinline__ void TurnTile(TurnShared& shared) {
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32, lane = static_cast<int32_t>(threadIdx.x) % 32;
  const uint8_t* const keys = shared.keys[warp];
  uint8_t* const values = shared.values + warp * kTileRowBytes * kTileRowBytes;
  const int32_t g = lane / 4, t = lane % 4;
  const bool upper = g >= 4;  // odd columns first: eight rows at once lie in different banks
#pragma unroll
  for (int32_t first_key = 0; first_key < kKeys; first_key += 16) {
    const int32_t key = first_key + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int32_t chunk = 0; chunk < 8; chunk += 2) {
      uint32_t pairs[4];
      LdMatrix4Transposed(pairs, keys + key * kTileRowBytes + ((chunk + lane / 16) ^ key % 8) * 16);
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const uint32_t even = __byte_perm(pairs[2 * i], pairs[2 * i + 1], 0x6420);
        const uint32_t odd = __byte_perm(pairs[2 * i], pairs[2 * i + 1], 0x7531);
        const int32_t even_row = (chunk + i) * 16 + 2 * g;
#pragma unroll
        for (int32_t turn = 0; turn < 2; ++turn) {
          const bool takes_odd = upper != (turn == 1);
          const int32_t row = even_row + takes_odd;
          uint8_t* const to = values + row * kTileRowBytes + (first_key / 16 ^ row % 8) * 16 + 4 * t;
          *reinterpret_cast<uint32_t*>(to) = takes_odd ? odd : even;
        }
      }
    }
  }
}

__global__ void __launch_bounds__(kWarpgroup) Turn(const __grid_constant__ TurnParams p) {
  GridDependencySync();
  auto& shared = SharedStorage<TurnShared>();
  for (int32_t i = 0; i < kLatent / kTileRowBytes; ++i) {
    StoreTile(shared.keys[i], p.keys + i * kKeys * kTileRowBytes, kKeys);
  }
  __syncthreads();
  for (int32_t round = 0; round < p.rounds; ++round) {
    TurnTile(shared);
    __syncthreads();
  }
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < kLatent * kKeys; i += kWarpgroup) {
    const int32_t row = i / kKeys, place = i % kKeys;
    p.values[i] = shared.values[row * kTileRowBytes + (place / 16 ^ row % 8) * 16 + place % 16];
  }
}

TEST(Probe, KeysTurnedIntoValues) {
  OpRig rig({}, RunMode::kEager);
  if (!RunsHopperKernels()) GTEST_SKIP() << "compiled for Hopper alone";
  const bool emulated = IsEmulated(rig.device());
  Noise noise(5);
  const E4m3Rows keys = RandomRows(noise, kLatent / kTileRowBytes * kKeys);
  const TurnParams params = {
      .keys = rig.Put(keys.codes), .values = rig.Poisoned<uint8_t>(kLatent * kKeys), .rounds = 0};
  LaunchShape shape = OneBlock(kWarpgroup);
  shape.shared_bytes = sizeof(TurnShared);
  // A byte is read and written once, 128 bytes a cycle; a tile's FP8 products take 1,024 cycles.
  const double cycles = 2.0 * kLatent * kKeys / 128;
  Print("64 keys x 512 turned", SecondsOfRound(rig, &Turn, shape, params, emulated ? 2 : 10000) * 1e6, "us",
        cycles / Model(rig.device()).clock * 1e6);
  const std::vector<uint8_t> values = rig.Get(params.values, kLatent * kKeys);
  for (int column = 0; column < kLatent; ++column) {
    for (int place = 0; place < kKeys; ++place) {
      const size_t row = size_t(column / kTileRowBytes) * kKeys + KeyAt(place);
      ASSERT_EQ(values[column * kKeys + place], keys.codes[row * kTileRowBytes + column % kTileRowBytes])
          << "column " << column << ", place " << place;
    }
  }
}

}  // namespace
}  // namespace foredraft::cuda
