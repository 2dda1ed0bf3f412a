#pragma once

// Finds NaN and infinity in tensor data, in a pass that is cheap compared with reading the data. So a faulty
// weight is refused by its tensor's name instead of spoiling every answer. Pure.

#include <cstdint>
#include <optional>
#include <string_view>

namespace foredraft {

// The index of the first element of data[0, bytes) that is NaN or infinite. `dtype`: safetensors' spelling;
// dtypes without such values give nullopt. `data` begins and ends at an element; it needs no alignment.
std::optional<int64_t> FindNonfinite(std::string_view dtype, const void* data, int64_t bytes);

}  // namespace foredraft
