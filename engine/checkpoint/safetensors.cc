#include "engine/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "engine/checkpoint/nonfinite.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxNameBytes = 512;

struct ElementSize {
  std::string_view dtype;
  int bytes;
};
constexpr ElementSize kElementSizes[] = {{"BOOL", 1},    {"U8", 1},      {"I8", 1},  {"F8_E4M3", 1},
                                         {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
                                         {"F16", 2},     {"BF16", 2},    {"I32", 4}, {"U32", 4},
                                         {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};

absl::Status Refuse(const std::string& file, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s", file, what));
}

absl::Status RefuseTensor(const std::string& file, const std::string& tensor, const std::string& what) {
  return Refuse(file, absl::StrFormat("tensor %s: %s", tensor, what));
}

absl::Status CheckMetadata(const nlohmann::json& metadata, const std::string& file) {
  if (!metadata.is_object()) return Refuse(file, "__metadata__ is not an object");
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return Refuse(file, absl::StrFormat("__metadata__.%s: %s, allowed strings", key, ShowJson(value)));
    }
  }
  return absl::OkStatus();
}

// Reads a size or an offset. False if it is negative, fractional or above int64.
bool ReadSize(const nlohmann::json& value, int64_t& out) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  out = static_cast<int64_t>(value.get<uint64_t>());
  return true;
}

absl::Status ReadShape(const nlohmann::json& shape, const std::string& file, TensorEntry& tensor) {
  if (!shape.is_array() || shape.size() > kMaxRank) {
    return RefuseTensor(file, tensor.name,
                        absl::StrFormat("shape: %s, allowed up to %d sizes", ShowJson(shape), kMaxRank));
  }
  tensor.bytes = SafetensorsElementBytes(tensor.dtype);
  for (const nlohmann::json& size : shape) {
    int64_t value = 0;
    if (!ReadSize(size, value) || __builtin_mul_overflow(tensor.bytes, value, &tensor.bytes)) {
      return RefuseTensor(file, tensor.name,
                          absl::StrFormat("shape: %s, allowed non-negative sizes whose product fits 63 bits",
                                          ShowJson(shape)));
    }
    tensor.shape.push_back(value);
  }
  return absl::OkStatus();
}

// Reads data_offsets; begin stays relative to the data section.
absl::Status ReadOffsets(const nlohmann::json& offsets, int64_t data_bytes, const std::string& file,
                         TensorEntry& tensor) {
  int64_t begin = 0;
  int64_t end = 0;
  const bool legal = offsets.is_array() && offsets.size() == 2 && ReadSize(offsets[0], begin) &&
                     ReadSize(offsets[1], end) && begin <= end;
  if (legal && end > data_bytes) {
    return RefuseTensor(
        file, tensor.name,
        absl::StrFormat("data_offsets: %s, the file ends %d bytes before: an interrupted copy?",
                        ShowJson(offsets), end - data_bytes));
  }
  if (!legal) {
    return RefuseTensor(
        file, tensor.name,
        absl::StrFormat("data_offsets: %s, allowed begin <= end <= %d", ShowJson(offsets), data_bytes));
  }
  if (end - begin != tensor.bytes) {
    return RefuseTensor(file, tensor.name,
                        absl::StrFormat("data_offsets: %s are %d bytes, dtype and shape make %d",
                                        ShowJson(offsets), end - begin, tensor.bytes));
  }
  tensor.begin = begin;
  return absl::OkStatus();
}

absl::StatusOr<TensorEntry> ReadEntry(const std::string& name, const nlohmann::json& entry,
                                      int64_t data_bytes, const std::string& file) {
  TensorEntry tensor;
  tensor.name = name;
  if (!entry.is_object()) return RefuseTensor(file, name, "not an object");
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(field)) return RefuseTensor(file, name, absl::StrFormat("%s: missing", field));
  }
  if (entry.size() != 3) return RefuseTensor(file, name, "fields beside dtype, shape and data_offsets");
  const nlohmann::json& dtype = entry["dtype"];
  if (dtype.is_string()) tensor.dtype = dtype.get<std::string>();
  if (SafetensorsElementBytes(tensor.dtype) == 0) {
    return RefuseTensor(file, name, absl::StrFormat("dtype: %s, unknown", ShowJson(dtype)));
  }
  RETURN_IF_ERROR(ReadShape(entry["shape"], file, tensor));
  RETURN_IF_ERROR(ReadOffsets(entry["data_offsets"], data_bytes, file, tensor));
  return tensor;
}

// Sorts the tensors by offset and checks that they cover the data section without hole or overlap. An empty
// tensor sorts before a tensor that begins at the same offset.
absl::Status CheckCoverage(std::vector<TensorEntry>& tensors, int64_t data_bytes, const std::string& file) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.bytes) < std::pair(b.begin, b.bytes);
  });
  int64_t covered = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != covered) {
      return RefuseTensor(file, tensor.name,
                          absl::StrFormat("data_offsets: begins at %d, %s up to %d", tensor.begin,
                                          tensor.begin > covered ? "hole" : "overlap",
                                          tensor.begin > covered ? tensor.begin : covered));
    }
    covered += tensor.bytes;
  }
  if (covered != data_bytes) {
    return Refuse(file,
                  absl::StrFormat("tensors cover %d bytes, the data section has %d", covered, data_bytes));
  }
  return absl::OkStatus();
}

// Reads all of [offset, offset + bytes).
absl::Status ReadAt(int fd, const std::string& what, int64_t offset, int64_t bytes, void* out) {
  char* next = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = pread(fd, next, static_cast<size_t>(std::min<int64_t>(bytes, 1 << 30)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::DataLossError(absl::StrFormat("%s: cannot be read: %s", what, std::strerror(errno)));
    }
    if (got == 0) {
      return absl::DataLossError(
          absl::StrFormat("%s: file ends at byte %d, %d bytes early", what, offset, bytes));
    }
    next += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

}  // namespace

int SafetensorsElementBytes(std::string_view dtype) {
  for (const ElementSize& size : kElementSizes) {
    if (size.dtype == dtype) return size.bytes;
  }
  return 0;
}

absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(std::string_view header, int64_t data_begin,
                                                                int64_t data_bytes, const std::string& file) {
  if (header.empty() || header[0] != '{') return Refuse(file, "header does not start with {");
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(header, file));
  if (object.size() > kMaxTensors + 1) {
    return Refuse(file, absl::StrFormat("%d tensors, allowed %d", object.size(), kMaxTensors));
  }
  std::vector<TensorEntry> tensors;
  tensors.reserve(object.size());
  for (const auto& [name, entry] : object.items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(CheckMetadata(entry, file));
      continue;
    }
    if (name.empty() || name.size() > kMaxNameBytes) {
      return Refuse(file,
                    absl::StrFormat("tensor name of %d bytes, allowed 1..%d", name.size(), kMaxNameBytes));
    }
    ASSIGN_OR_RETURN(TensorEntry tensor, ReadEntry(name, entry, data_bytes, file));
    tensors.push_back(std::move(tensor));
  }
  RETURN_IF_ERROR(CheckCoverage(tensors, data_bytes, file));
  for (TensorEntry& tensor : tensors) tensor.begin += data_begin;
  return tensors;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  // O_NONBLOCK: opening a FIFO must not block; it is refused below.
  file.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) {
    const int error = errno;
    const std::string text = absl::StrFormat("%s: cannot be opened: %s", path, std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
  }
  struct stat stat = {};
  if (fstat(file.fd_, &stat) != 0 || !S_ISREG(stat.st_mode)) return Refuse(path, "not a regular file");
  const int64_t file_bytes = stat.st_size;
  if (file_bytes < kLengthBytes) {
    return Refuse(path, absl::StrFormat("%d bytes, too short for a header length", file_bytes));
  }
  unsigned char length_bytes[kLengthBytes];
  RETURN_IF_ERROR(ReadAt(file.fd_, path, 0, kLengthBytes, length_bytes));
  if (std::memcmp(length_bytes, "version ", kLengthBytes) == 0) {
    return Refuse(path, "a pointer of Git LFS, not the file itself: git lfs pull brings it");
  }
  uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) length = length << 8 | length_bytes[i];
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return Refuse(path, absl::StrFormat("header length: %d, allowed %d", length, kMaxHeaderBytes));
  }
  const int64_t header_bytes = static_cast<int64_t>(length);
  if (header_bytes > file_bytes - kLengthBytes) {
    return Refuse(path,
                  absl::StrFormat("header length: %d, the file has %d bytes", header_bytes, file_bytes));
  }
  std::string header(static_cast<size_t>(header_bytes), '\0');
  RETURN_IF_ERROR(ReadAt(file.fd_, path, kLengthBytes, header_bytes, header.data()));
  const int64_t data_begin = kLengthBytes + header_bytes;
  ASSIGN_OR_RETURN(file.tensors_, ParseSafetensorsHeader(header, data_begin, file_bytes - data_begin, path));
  for (size_t i = 0; i < file.tensors_.size(); ++i) file.index_[file.tensors_[i].name] = i;
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      tensors_(std::move(other.tensors_)),
      index_(std::move(other.index_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(tensors_, other.tensors_);
  std::swap(index_, other.index_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (fd_ >= 0) close(fd_);
}

const TensorEntry* SafetensorsFile::Find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

absl::Status SafetensorsFile::Read(const TensorEntry& tensor, int64_t offset, int64_t bytes,
                                   void* out) const {
  constexpr int64_t kPieceBytes = int64_t{1} << 18;  // stays in the processor's cache until it is checked
  const std::string what = absl::StrFormat("%s: tensor %s", path_, tensor.name);
  for (int64_t done = 0; done < bytes; done += kPieceBytes) {
    char* const piece = static_cast<char*>(out) + done;
    const int64_t piece_bytes = std::min(kPieceBytes, bytes - done);
    RETURN_IF_ERROR(ReadAt(fd_, what, tensor.begin + offset + done, piece_bytes, piece));
    if (const auto found = FindNonfinite(tensor.dtype, piece, piece_bytes)) {
      const int64_t element = (offset + done) / SafetensorsElementBytes(tensor.dtype) + *found;
      const int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: element [%d, %d]: NaN or infinite, allowed finite numbers", what,
                          element / columns, element % columns));
    }
  }
  return absl::OkStatus();
}

}  // namespace foredraft
