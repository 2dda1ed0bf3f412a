#include "kernels/cpu/attention/kv_row_math.h"

#include <algorithm>

#include "kernels/cpu/attention/rope.h"
#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/kv_row.h"

namespace foredraft {
namespace cpu {
namespace {

FOREDRAFT_WIDE uint32_t LargestMagnitude(const bf16* x, int32_t count) {
  uint32_t largest = 0;
  for (int32_t i = 0; i < count; ++i) largest = std::max(largest, KvMagnitude(x[i]));
  return largest;
}

template <class Codes>
FOREDRAFT_WIDE void EncodeGroup(const bf16* x, int32_t count, float inverse, uint8_t* codes) {
  for (int32_t i = 0; i < count; ++i) codes[i] = Codes::Code(x[i], inverse);
}

template <class Codes>
FOREDRAFT_WIDE void DecodeGroup(const uint8_t* codes, int32_t count, float scale, uint16_t* out) {
  for (int32_t i = 0; i < count; ++i) out[i] = Codes::Value(codes[i], scale).bits;
}

template <class Codes>
void EncodeGroups(const bf16* latent, const KvRowLayout& layout, uint8_t* row) {
  float* scales = reinterpret_cast<float*>(row + layout.scale_offset());
  for (int32_t begin = 0; begin < layout.latent_dim; begin += layout.group) {
    const int32_t count = std::min(layout.group, layout.latent_dim - begin);
    const float scale = Codes::Scale(LargestMagnitude(latent + begin, count));
    EncodeGroup<Codes>(latent + begin, count, 1.0f / scale, row + begin);
    *scales++ = scale;
  }
}

template <class Codes>
void DecodeGroups(const DecodeLatentArgs& args) {
  for (int32_t begin = 0; begin < args.len; begin += args.group) {
    const int32_t count = std::min(args.group, args.len - begin);
    DecodeGroup<Codes>(args.codes + begin, count, args.scales[begin / args.group], args.out + begin);
  }
}

}  // namespace

void EncodeLatent(const bf16* latent, const KvRowLayout& layout, uint8_t* row) {
  WithKvCodes(layout.dtype, [&](auto codes) { EncodeGroups<decltype(codes)>(latent, layout, row); });
}

void DecodeLatent(const IsaKernels& isa, const uint8_t* row, const KvRowLayout& layout, bf16* latent) {
  const DecodeLatentArgs args = {&latent->bits, row,
                                 reinterpret_cast<const float*>(row + layout.scale_offset()),
                                 layout.latent_dim, layout.group};
  if (layout.dtype == DType::kF8E4M3) return isa.decode_latent(args);
  WithKvCodes(layout.dtype, [&](auto codes) { DecodeGroups<decltype(codes)>(args); });
}

void WriteKeyRow(const float* x, const float* cos_sin, const KvRowLayout& layout, uint8_t* row) {
  const int32_t kept = layout.latent_dim;
  bf16* const rounded = layout.coded() ? ThreadScratch<bf16>(kept) : reinterpret_cast<bf16*>(row);
  RoundToBf16(x, kept, rounded);
  if (layout.coded()) EncodeLatent(rounded, layout, row);
  RotatePairs(x + kept, cos_sin, 1.0f, layout.rope_dim, reinterpret_cast<bf16*>(row + layout.rope_offset()));
}

void WidenKeyRow(const IsaKernels& isa, const uint8_t* row, const KvRowLayout& layout, float* out) {
  bf16* const scratch = layout.coded() ? ThreadScratch<bf16>(layout.latent_dim) : nullptr;
  ToFloats(LatentOf(isa, row, layout, scratch), layout.latent_dim, out);
  ToFloats(RopeOf(row, layout), layout.rope_dim, out + layout.latent_dim);
}

}  // namespace cpu

void DecodeLatentPortable(const DecodeLatentArgs& args) { cpu::DecodeGroups<KvCodes<DType::kF8E4M3>>(args); }

}  // namespace foredraft
