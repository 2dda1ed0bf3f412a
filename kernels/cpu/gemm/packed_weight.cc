#include "kernels/cpu/gemm/packed_weight.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/weight_parts.h"

namespace foredraft {
namespace {

// Inputs that share a scale; all of them where there are no scales.
int32_t BlockK(const HostWeight& part) {
  return part.format.has_scales() ? std::min(part.format.columns, part.k) : part.k;
}

// The part that has output `index` of the stacked weight, and its row there; null past the end.
struct SourceRow {
  const HostWeight* part = nullptr;
  int64_t row = 0;
};

SourceRow FindRow(std::span<const HostWeight> parts, int64_t index) {
  for (const HostWeight& part : parts) {
    if (index < part.n) return {&part, index};
    index -= part.n;
  }
  return {};
}

uint16_t Bf16BitsAt(const HostWeight& part, int64_t index) {
  if (part.format.code == DType::kF32) return ToBf16(static_cast<const float*>(part.data)[index]).bits;
  return static_cast<const uint16_t*>(part.data)[index];
}

uint8_t ByteAt(const HostWeight& part, int64_t index) {
  return static_cast<const uint8_t*>(part.data)[index];
}

// Writes one panel, whose memory is zeroed.
template <class Element, Element (*at)(const HostWeight&, int64_t)>
void FillPanel(std::span<const HostWeight> parts, const PackedHeader& header, int64_t panel, Element* out) {
  const int32_t k = parts[0].k;
  for (int lane = 0; lane < kPanelWidth; ++lane) {
    const SourceRow source = FindRow(parts, panel * kPanelWidth + lane);
    if (source.part == nullptr) return;
    int64_t pair = 0;  // first pair of the k block
    for (int32_t block_first = 0; block_first < k; block_first += header.block_k) {
      const int32_t block_len = std::min(header.block_k, k - block_first);
      for (int32_t i = 0; i < block_len; ++i) {
        out[((pair + i / 2) * kPanelWidth + lane) * 2 + i % 2] =
            at(*source.part, source.row * k + block_first + i);
      }
      pair += (block_len + 1) / 2;
    }
  }
}

static_assert(std::endian::native == std::endian::little, "eight codes are read as one integer");

// Bytes of a group of a panel: codes and scales.
int64_t GroupBytes(const WeightFormat& format) {
  return kPanelWidth * (int64_t{format.columns} / 2 + static_cast<int64_t>(DTypeBytes(format.scale)));
}

// Bytes before the groups of a panel: the tensor scales of its outputs.
int64_t TensorScaleBytes(const WeightFormat& format) {
  return format.tensor_scale ? kPanelWidth * static_cast<int64_t>(sizeof(float)) : 0;
}

// Writes one panel of a 4-bit kind, whose memory is zeroed.
void FillPanel4Bit(std::span<const HostWeight> parts, const PackedHeader& header, int64_t panel,
                   unsigned char* out) {
  const WeightFormat& format = parts[0].format;
  const int64_t row_bytes = parts[0].k / 2;
  const int64_t group_bytes = GroupBytes(format);
  const auto scale_bytes = static_cast<int64_t>(DTypeBytes(format.scale));
  const int32_t octets = header.block_k / 8;
  auto* const tensor_scales = reinterpret_cast<float*>(out);
  out += TensorScaleBytes(format);
  for (int lane = 0; lane < kPanelWidth; ++lane) {
    const SourceRow source = FindRow(parts, panel * kPanelWidth + lane);
    if (source.part == nullptr) return;
    if (format.tensor_scale) tensor_scales[lane] = source.part->tensor_scale;
    const unsigned char* codes =
        static_cast<const unsigned char*>(source.part->data) + source.row * row_bytes;
    for (int32_t block = 0; block < header.k_blocks; ++block) {
      unsigned char* const group = out + block * group_bytes;
      auto* const words = reinterpret_cast<uint32_t*>(group);
      for (int32_t octet = 0; octet < octets; ++octet, codes += 4) {
        uint32_t eight;
        std::memcpy(&eight, codes, sizeof(eight));
        words[octet * kPanelWidth + lane] = OctetWord(eight);
      }
      auto* const scales = reinterpret_cast<unsigned char*>(words + octets * kPanelWidth);
      const auto* const stored = static_cast<const unsigned char*>(source.part->scales);
      std::memcpy(scales + lane * scale_bytes, stored + (source.row * header.k_blocks + block) * scale_bytes,
                  static_cast<size_t>(scale_bytes));
    }
  }
}

void FillScales(std::span<const HostWeight> parts, const PackedHeader& header, int64_t panel, float* out) {
  for (int lane = 0; lane < kPanelWidth; ++lane) {
    const SourceRow source = FindRow(parts, panel * kPanelWidth + lane);
    for (int32_t block = 0; block < header.k_blocks; ++block) {
      const float* scales = source.part != nullptr ? source.part->f32_scales() : nullptr;
      out[block * kPanelWidth + lane] =
          scales != nullptr ? scales[source.row / source.part->format.rows * header.k_blocks + block] : 0.0f;
    }
  }
}

PackedHeader MakeHeader(std::span<const HostWeight> parts, int64_t n) {
  const int32_t k = parts[0].k;
  PackedHeader header{};
  header.panel_count = static_cast<int32_t>((n + kPanelWidth - 1) / kPanelWidth);
  header.block_k = BlockK(parts[0]);
  header.k_blocks = (k + header.block_k - 1) / header.block_k;
  if (Is4Bit(parts[0].format)) {
    const WeightFormat& format = parts[0].format;
    header.panel_bytes = TensorScaleBytes(format) + header.k_blocks * GroupBytes(format);
    return header;
  }
  const int64_t last_len = k - static_cast<int64_t>(header.k_blocks - 1) * header.block_k;
  const int64_t pairs =
      static_cast<int64_t>(header.k_blocks - 1) * ((header.block_k + 1) / 2) + (last_len + 1) / 2;
  header.panel_bytes = pairs * 2 * kPanelWidth * (HasScaleGrid(parts[0].format) ? 1 : 2);
  return header;
}

int64_t PanelScales(const PackedHeader& header) { return int64_t{header.k_blocks} * kPanelWidth; }

int64_t HeaderBytes(int part_count) {
  const auto bytes =
      static_cast<int64_t>(sizeof(PackedHeader)) + part_count * static_cast<int64_t>(sizeof(PanelPart));
  return (bytes + 63) / 64 * 64;
}

// Allocates header and parts, a part per node. On one node the panels follow the header.
absl::StatusOr<const PackedHeader*> AllocatePanels(const PackedHeader& shape, bool has_grid,
                                                   const ThreadPool& pool, const AllocateOnNode& allocate) {
  const int nodes = pool.node_count();
  const int64_t own_bytes = nodes == 1 ? shape.panel_bytes * shape.panel_count : 0;
  ASSIGN_OR_RETURN(void* const memory, allocate(HeaderBytes(nodes) + own_bytes, nodes == 1 ? 0 : kNoNode));
  auto* const header = new (memory) PackedHeader(shape);
  header->part_count = nodes;
  for (int node = 0; node < nodes; ++node) {
    const int64_t first = pool.FirstPanel(shape.panel_count, node);
    const int64_t count = pool.FirstPanel(shape.panel_count, node + 1) - first;
    void* panels = static_cast<unsigned char*>(memory) + HeaderBytes(nodes);
    if (nodes > 1) {
      ASSIGN_OR_RETURN(panels, allocate(shape.panel_bytes * count, node));
    }
    void* scales = nullptr;
    if (has_grid) {
      ASSIGN_OR_RETURN(scales, allocate(PanelScales(shape) * count * sizeof(float), node));
    }
    new (reinterpret_cast<PanelPart*>(header + 1) + node)
        PanelPart{static_cast<const unsigned char*>(panels), static_cast<const float*>(scales), first};
  }
  return header;
}

int32_t OutputsOf(std::span<const HostWeight> parts) {
  int32_t n = 0;
  for (const HostWeight& part : parts) n += part.n;
  return n;
}

}  // namespace

int64_t PackedBytes(std::span<const HostWeight> parts) {
  const PackedHeader header = MakeHeader(parts, OutputsOf(parts));
  const int64_t scale_bytes =
      HasScaleGrid(parts[0].format) ? PanelScales(header) * static_cast<int64_t>(sizeof(float)) : 0;
  return HeaderBytes(1) + (header.panel_bytes + scale_bytes) * header.panel_count;
}

absl::StatusOr<PackedWeight> PackParts(std::span<const HostWeight> parts, ThreadPool& pool,
                                       const AllocateOnNode& allocate) {
  RETURN_IF_ERROR(CheckParts(parts));
  RETURN_IF_ERROR(CheckSameBlocks(parts));
  const int32_t n = OutputsOf(parts);
  const bool has_grid = HasScaleGrid(parts[0].format);
  ASSIGN_OR_RETURN(const PackedHeader* const header,
                   AllocatePanels(MakeHeader(parts, n), has_grid, pool, allocate));
  const WeightFormat& format = IsQuantised(parts[0].format) ? parts[0].format : kBf16Format;
  const PackedWeight weight{
      .data = header, .scales = header->parts()[0].scales, .n = n, .k = parts[0].k, .format = format};
  const int64_t panel_cost = static_cast<int64_t>(parts[0].k) * kPanelWidth;
  pool.ParallelForPanels(header->panel_count, 1, panel_cost, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const Panel target = PanelOf(weight, panel);
      auto* const out = const_cast<unsigned char*>(target.data);
      if (Is4Bit(parts[0].format)) {
        FillPanel4Bit(parts, *header, panel, out);
      } else if (has_grid) {
        FillPanel<uint8_t, ByteAt>(parts, *header, panel, out);
        FillScales(parts, *header, panel, const_cast<float*>(target.scales));
      } else {
        FillPanel<uint16_t, Bf16BitsAt>(parts, *header, panel, reinterpret_cast<uint16_t*>(out));
      }
    }
  });
  return weight;
}

}  // namespace foredraft
