// A safetensors header (after four bytes that say how long its data section is), and the same text as a shard
// index: refused, or every rule of engine/checkpoint/safetensors.h holds for what comes out.

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/safetensors.h"

namespace foredraft {
namespace {

void TryHeader(std::string_view header, int64_t data_bytes) {
  constexpr int64_t kDataBegin = 1000;
  const auto tensors = ParseSafetensorsHeader(header, kDataBegin, data_bytes, "fuzz");
  if (!tensors.ok()) return;
  int64_t place = kDataBegin;
  for (const TensorEntry& tensor : *tensors) {
    int64_t bytes = SafetensorsElementBytes(tensor.dtype);
    CHECK_GT(bytes, 0);
    for (const int64_t size : tensor.shape) bytes *= size;
    CHECK_EQ(tensor.begin, place);
    CHECK_EQ(tensor.bytes, bytes);
    place += bytes;
  }
  CHECK_EQ(place, kDataBegin + data_bytes);
}

void TryIndex(std::string_view json) {
  const auto shards = ParseShardIndex(json, "fuzz");
  if (!shards.ok()) return;
  for (const auto& [tensor, shard] : *shards) {
    CHECK(shard.find('/') == std::string::npos) << shard;
    CHECK(shard.ends_with(".safetensors")) << shard;
  }
}

}  // namespace
}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 4, size - 4);
  foredraft::TryHeader(text, int64_t{data[0]} | int64_t{data[1]} << 8 | int64_t{data[2]} << 16);
  foredraft::TryIndex(text);
  return 0;
}
