// The products of the CPU: a row per kind of codes. A format whose codes have no row here cannot be packed.

#include "kernels/cpu/gemm/weight_product.h"

#include "base/check.h"
#include "kernels/cpu/gemm/gemm_nvfp4.h"

namespace foredraft::cpu {
namespace {

// The values of the 4-bit codes, which BF16 holds exactly.
struct CodeTable {
  uint16_t bits[16];
};
constexpr CodeTable MakeCodeTable(DType dtype) {
  CodeTable table{};
  for (int code = 0; code < 16; ++code) table.bits[code] = ToBf16(Code4ToFloat(dtype, code)).bits;
  return table;
}
constexpr CodeTable kInt4Table = MakeCodeTable(DType::kInt4);
constexpr CodeTable kF4E2M1Table = MakeCodeTable(DType::kF4E2M1);

template <GemmTileFn IsaKernels::*tile>
void Tile(const IsaKernels& isa, GemmTileArgs& args) {
  (isa.*tile)(args);
}

template <const CodeTable& table>
void FourBits(const IsaKernels& isa, GemmTileArgs& args) {
  args.table = table.bits;
  isa.gemm_4bit(args);
}

void Nvfp4(const IsaKernels& isa, GemmTileArgs& args) {
  args.table = kF4E2M1Table.bits;
  isa.gemm_nvfp4 != nullptr ? isa.gemm_nvfp4(args) : ComputeNvfp4Tile(isa, args);
}

struct ProductRow {
  DType code;
  bool tensor_scale;
  WeightProduct product;
};
constexpr ProductRow kProducts[] = {
    {DType::kBF16, false, Tile<&IsaKernels::gemm_bf16>},
    {DType::kF8E4M3, false, Tile<&IsaKernels::gemm_f8>},
    {DType::kInt4, false, FourBits<kInt4Table>},
    {DType::kF4E2M1, false, FourBits<kF4E2M1Table>},
    {DType::kF4E2M1, true, Nvfp4},
};

}  // namespace

WeightProduct ProductOf(const WeightFormat& format) {
  for (const ProductRow& row : kProducts) {
    if (row.code == format.code && row.tensor_scale == format.tensor_scale) return row.product;
  }
  CHECK(false) << "no product of " << DTypeName(format.code);
  return nullptr;
}

}  // namespace foredraft::cpu
