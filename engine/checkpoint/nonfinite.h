#pragma once

// Finds NaN and infinity in tensor data, in a pass that is cheap beside reading the data: a wrong weight is
// then refused by its tensor's name instead of spoiling every answer. Pure.

#include <cstdint>
#include <optional>
#include <string_view>

namespace foredraft {

// The index of the first element of data[0, bytes) that is NaN or infinite. `dtype`: safetensors' spelling;
// none for dtypes without such values. `data` begins and ends at an element; it needs no alignment.
std::optional<int64_t> FindNonfinite(std::string_view dtype, const void* data, int64_t bytes);

}  // namespace foredraft
