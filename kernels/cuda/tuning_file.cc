#include "kernels/cuda/tuning_file.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/fnv.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

using nlohmann::json;

constexpr char kDecode[] = "decode";
constexpr char kPrefill[] = "prefill";

std::string ShowDevice(const TunedFor& device) {
  return absl::StrFormat("%s with %d SMs and cublasLt %d", device.gpu, device.multiprocessors,
                         device.cublaslt);
}

absl::Status Refuse(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrFormat("cublaslt.tuning_file: %s: %s", path, what));
}

// The value of a key, or a refusal that names it.
template <class T>
absl::Status Take(const json& from, const char* key, const std::string& where, const std::string& path,
                  T* value) {
  const auto found = from.find(key);
  constexpr bool is_text = std::is_same_v<T, std::string>;
  if (found == from.end() || !(is_text ? found->is_string() : found->is_number())) {
    return Refuse(path, absl::StrFormat("%s: %s: %s, expected a %s", where, key,
                                        found == from.end() ? "missing" : found->dump(),
                                        is_text ? "string" : "number"));
  }
  *value = found->get<T>();
  return absl::OkStatus();
}

absl::Status TakeDType(const json& from, const char* key, DType other, const std::string& where,
                       const std::string& path, DType* value) {
  std::string name;
  RETURN_IF_ERROR(Take(from, key, where, path, &name));
  for (const DType dtype : {DType::kBF16, other}) {
    if (name != DTypeName(dtype)) continue;
    *value = dtype;
    return absl::OkStatus();
  }
  return Refuse(path, absl::StrFormat("%s: %s: \"%s\", allowed %s, %s", where, key, name,
                                      DTypeName(DType::kBF16), DTypeName(other)));
}

absl::Status TakeShape(const json& from, const std::string& where, const std::string& path,
                       GemmShape* shape) {
  RETURN_IF_ERROR(Take(from, "n", where, path, &shape->n));
  RETURN_IF_ERROR(Take(from, "k", where, path, &shape->k));
  RETURN_IF_ERROR(TakeDType(from, "weight", DType::kF8E4M3, where, path, &shape->weight));
  RETURN_IF_ERROR(TakeDType(from, "out", DType::kF32, where, path, &shape->out));
  std::string form;
  RETURN_IF_ERROR(Take(from, "form", where, path, &form));
  if (form != kDecode && form != kPrefill) {
    return Refuse(path, absl::StrFormat("%s: form: \"%s\", allowed %s, %s", where, form, kDecode, kPrefill));
  }
  shape->form = form == kDecode ? GemmForm::kDecode : GemmForm::kPrefill;
  return absl::OkStatus();
}

absl::Status TakeAlgorithm(const json& from, const std::string& where, const std::string& path,
                           TunedAlgorithm* algorithm) {
  std::string hex;
  RETURN_IF_ERROR(Take(from, "algorithm", where, path, &hex));
  if (hex.size() != 2 * algorithm->bytes.size() ||
      hex.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return Refuse(path, absl::StrFormat("%s: algorithm: %d characters, expected %d hexadecimal digits", where,
                                        hex.size(), 2 * algorithm->bytes.size()));
  }
  const std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), algorithm->bytes.begin());
  RETURN_IF_ERROR(Take(from, "name", where, path, &algorithm->name));
  RETURN_IF_ERROR(Take(from, "us", where, path, &algorithm->us));
  RETURN_IF_ERROR(Take(from, "own_us", where, path, &algorithm->own_us));
  const auto attributes = from.find("attributes");
  if (attributes == from.end()) return absl::OkStatus();
  for (const auto& [key, value] : attributes->items()) {
    if (!value.is_number_integer())
      return Refuse(path, where + ": attributes: " + key + ": expected a number");
    algorithm->attributes[key] = value.get<int64_t>();
  }
  return absl::OkStatus();
}

}  // namespace

std::string WriteTuningFile(const TuningFile& file) {
  json entries = json::array();
  for (const auto& [shape, algorithm] : file.algorithms) {
    const absl::string_view bytes(reinterpret_cast<const char*>(algorithm.bytes.data()),
                                  algorithm.bytes.size());
    entries.push_back({{"name", algorithm.name},
                       {"n", shape.n},
                       {"k", shape.k},
                       {"weight", DTypeName(shape.weight)},
                       {"out", DTypeName(shape.out)},
                       {"form", shape.form == GemmForm::kDecode ? kDecode : kPrefill},
                       {"us", algorithm.us},
                       {"own_us", algorithm.own_us},
                       {"attributes", algorithm.attributes},
                       {"algorithm", absl::BytesToHexString(bytes)}});
  }
  const json text = {{"cublaslt", file.tuned_for.cublaslt},
                     {"gpu", file.tuned_for.gpu},
                     {"multiprocessors", file.tuned_for.multiprocessors},
                     {"gemms", entries}};
  return text.dump(1) + "\n";
}

absl::StatusOr<TuningFile> ParseTuningFile(std::string_view text, const std::string& path) {
  const json root = json::parse(text, nullptr, false);
  if (!root.is_object()) return Refuse(path, "not a JSON object");
  TuningFile file;
  RETURN_IF_ERROR(Take(root, "cublaslt", "file", path, &file.tuned_for.cublaslt));
  RETURN_IF_ERROR(Take(root, "gpu", "file", path, &file.tuned_for.gpu));
  RETURN_IF_ERROR(Take(root, "multiprocessors", "file", path, &file.tuned_for.multiprocessors));
  const auto gemms = root.find("gemms");
  if (gemms == root.end() || !gemms->is_array()) return Refuse(path, "gemms: expected a list");
  for (size_t i = 0; i < gemms->size(); ++i) {
    const std::string where = absl::StrFormat("gemms[%d]", i);
    const json& entry = (*gemms)[i];
    if (!entry.is_object()) return Refuse(path, where + ": expected an object");
    GemmShape shape;
    TunedAlgorithm algorithm;
    RETURN_IF_ERROR(TakeShape(entry, where, path, &shape));
    RETURN_IF_ERROR(TakeAlgorithm(entry, where, path, &algorithm));
    if (!file.algorithms.emplace(shape, std::move(algorithm)).second) {
      return Refuse(path, where + ": a GEMM that is there already");
    }
  }
  return file;
}

absl::StatusOr<std::map<GemmShape, TunedAlgorithm>> LoadTunedAlgorithms(const std::string& path,
                                                                        const TunedFor& here) {
  if (path.empty()) return std::map<GemmShape, TunedAlgorithm>{};
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrFormat("cublaslt.tuning_file: %s: cannot be read", path));
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  ASSIGN_OR_RETURN(TuningFile file, ParseTuningFile(text, path));
  if (file.tuned_for != here) {
    Log(LogLevel::kWarning, "cublaslt.tuning_file %s is not used: made for %s, this is %s", path,
        ShowDevice(file.tuned_for), ShowDevice(here));
    return std::map<GemmShape, TunedAlgorithm>{};
  }
  return std::move(file.algorithms);
}

uint32_t TuningHash(const std::map<GemmShape, TunedAlgorithm>& algorithms) {
  uint64_t hash = kFnvOffset;
  const auto add = [&](const auto& bytes) {
    hash = Fnv1a({reinterpret_cast<const char*>(&bytes), sizeof(bytes)}, hash);
  };
  for (const auto& [shape, algorithm] : algorithms) {
    for (const int32_t field : {shape.n, shape.k, static_cast<int32_t>(shape.weight),
                                static_cast<int32_t>(shape.out), static_cast<int32_t>(shape.form)}) {
      add(field);
    }
    add(algorithm.bytes);
  }
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

}  // namespace foredraft
