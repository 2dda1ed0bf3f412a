#include "kernels/cpu/attention/kv_row_math.h"

#include <algorithm>

#include "base/check.h"
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

using F8 = KvCodes<DType::kF8E4M3>;

FOREDRAFT_WIDE void EncodeF8(const bf16* x, int32_t count, float inverse, uint8_t* codes) {
  for (int32_t i = 0; i < count; ++i) codes[i] = F8::Code(x[i], inverse);
}

FOREDRAFT_WIDE void DecodeF8(const uint8_t* codes, int32_t count, float scale, uint16_t* out) {
  for (int32_t i = 0; i < count; ++i) out[i] = F8::Value(codes[i], scale).bits;
}

// What the CPU does with latents of a dtype.
struct LatentCodec {
  DType dtype;
  float (*scale)(uint32_t magnitude);
  void (*encode)(const bf16* x, int32_t count, float inverse, uint8_t* codes);  // of one group
  void (*decode)(const IsaKernels& isa, const DecodeLatentArgs& args);
};
constexpr LatentCodec kCodecs[] = {
    {DType::kF8E4M3, F8::Scale, EncodeF8,
     [](const IsaKernels& isa, const DecodeLatentArgs& args) { isa.decode_latent(args); }},
};

const LatentCodec& CodecOf(DType dtype) {
  for (const LatentCodec& codec : kCodecs) {
    if (codec.dtype == dtype) return codec;
  }
  CHECK(false) << "no latents in " << DTypeName(dtype);
  return kCodecs[0];
}

}  // namespace

void EncodeLatent(const bf16* latent, const KvRowLayout& layout, uint8_t* row) {
  const LatentCodec& codec = CodecOf(layout.dtype);
  float* scales = reinterpret_cast<float*>(row + layout.scale_offset());
  for (int32_t begin = 0; begin < layout.latent_dim; begin += layout.group) {
    const int32_t count = std::min(layout.group, layout.latent_dim - begin);
    const float scale = codec.scale(LargestMagnitude(latent + begin, count));
    codec.encode(latent + begin, count, 1.0f / scale, row + begin);
    *scales++ = scale;
  }
}

void DecodeLatent(const IsaKernels& isa, const uint8_t* row, const KvRowLayout& layout, bf16* latent) {
  CodecOf(layout.dtype)
      .decode(isa, {&latent->bits, row, reinterpret_cast<const float*>(row + layout.scale_offset()),
                    layout.latent_dim, layout.group});
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

void DecodeLatentPortable(const DecodeLatentArgs& args) {
  for (int32_t begin = 0; begin < args.len; begin += args.group) {
    const int32_t count = std::min(args.group, args.len - begin);
    cpu::DecodeF8(args.codes + begin, count, args.scales[begin / args.group], args.out + begin);
  }
}

}  // namespace foredraft
