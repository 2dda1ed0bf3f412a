#pragma once

// Reader of safetensors files. It trusts nothing in a file: Open checks the whole header before any tensor
// data is read.
// clang-format off
//   header-size   8-byte little-endian length, 2 bytes..100 MB, inside the file
//   header-json   UTF-8 JSON object that starts with '{', no duplicate keys; __metadata__ maps strings to strings
//   entry         known dtype; shape of at most 8 non-negative sizes whose product does not overflow; name of
//                 at most 512 bytes; at most 1,000,000 tensors
//   offsets       the tensors cover the data section from its first to its last byte, without hole or overlap,
//                 each as long as its dtype and shape say. No alignment is assumed
// clang-format on
// Files are read with pread, not mapped: a file that shrinks while it is read is an error, not a SIGBUS.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foredraft {

// One tensor of a file.
struct TensorEntry {
  std::string name;
  std::string dtype;           // safetensors' spelling: "BF16"
  std::vector<int64_t> shape;  // row-major
  int64_t begin = 0;           // offset of the first byte in the file
  int64_t bytes = 0;
};

// An open file and its checked header. Move-only; Read may be called from any thread.
class SafetensorsFile {
 public:
  // NOT_FOUND or INVALID_ARGUMENT names the file, and the tensor if one is at fault.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  const std::vector<TensorEntry>& tensors() const { return tensors_; }  // by offset
  const TensorEntry* Find(const std::string& name) const;               // null: no such tensor

  // Reads bytes [offset, offset + bytes) of a tensor, whole elements. DATA_LOSS, naming file and tensor, if
  // the file has become shorter. INVALID_ARGUMENT, naming the element too, if an element is NaN or infinite.
  absl::Status Read(const TensorEntry& tensor, int64_t offset, int64_t bytes, void* out) const;

 private:
  SafetensorsFile() = default;

  std::string path_;
  int fd_ = -1;  // owned
  std::vector<TensorEntry> tensors_;
  absl::flat_hash_map<std::string, size_t> index_;  // name to index in tensors_
};

// Parses and checks the JSON text of a header. `data_bytes` is the length of the data section, which starts
// at `data_begin`; `file` names it in errors.
absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(std::string_view header, int64_t data_begin,
                                                                int64_t data_bytes, const std::string& file);

// Bytes per element of a dtype by safetensors' name; 0 = unknown.
int SafetensorsElementBytes(std::string_view dtype);

}  // namespace foredraft
