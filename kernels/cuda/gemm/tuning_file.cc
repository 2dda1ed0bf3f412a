#include "kernels/cuda/gemm/tuning_file.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/fnv.h"
#include "base/hex.h"
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

// A JSON object of the file. Its errors name the file, the object and the key.
struct JsonObject {
  const json& value;
  std::string name;
  std::string path;  // of the file

  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrFormat("cublaslt.tuning_file: %s: %s", path, what));
  }
  absl::Status ErrorAt(const char* key, const std::string& what) const {
    return Error(absl::StrFormat("%s: %s: %s", name, key, what));
  }

  template <class T>
  absl::StatusOr<T> Get(const char* key) const {
    const auto found = value.find(key);
    constexpr bool is_text = std::is_same_v<T, std::string>;
    if (found == value.end() || !(is_text ? found->is_string() : found->is_number())) {
      return ErrorAt(key,
                     absl::StrFormat("%s, expected a %s", found == value.end() ? "missing" : found->dump(),
                                     is_text ? "string" : "number"));
    }
    return found->get<T>();
  }

  // BF16 or `other`.
  absl::StatusOr<DType> GetDType(const char* key, DType other) const {
    const absl::StatusOr<std::string> text = Get<std::string>(key);
    RETURN_IF_ERROR(text.status());
    for (const DType dtype : {DType::kBF16, other}) {
      if (*text == DTypeName(dtype)) return dtype;
    }
    return ErrorAt(
        key, absl::StrFormat("\"%s\", allowed %s, %s", *text, DTypeName(DType::kBF16), DTypeName(other)));
  }
};

absl::StatusOr<GemmShape> ReadShape(const JsonObject& entry) {
  GemmShape shape;
  ASSIGN_OR_RETURN(shape.n, entry.Get<int32_t>("n"));
  ASSIGN_OR_RETURN(shape.k, entry.Get<int32_t>("k"));
  ASSIGN_OR_RETURN(shape.weight, entry.GetDType("weight", DType::kF8E4M3));
  ASSIGN_OR_RETURN(shape.out, entry.GetDType("out", DType::kF32));
  ASSIGN_OR_RETURN(const std::string form, entry.Get<std::string>("form"));
  if (form != kDecode && form != kPrefill) {
    return entry.ErrorAt("form", absl::StrFormat("\"%s\", allowed %s, %s", form, kDecode, kPrefill));
  }
  shape.form = form == kDecode ? GemmForm::kDecode : GemmForm::kPrefill;
  return shape;
}

absl::StatusOr<TunedAlgorithm> ReadAlgorithm(const JsonObject& entry) {
  TunedAlgorithm algorithm;
  ASSIGN_OR_RETURN(const std::string hex, entry.Get<std::string>("algorithm"));
  if (!ReadHex(hex, algorithm.bytes)) {
    return entry.ErrorAt("algorithm", absl::StrFormat("%d characters, expected %d hexadecimal digits",
                                                      hex.size(), 2 * algorithm.bytes.size()));
  }
  ASSIGN_OR_RETURN(algorithm.name, entry.Get<std::string>("name"));
  ASSIGN_OR_RETURN(algorithm.us, entry.Get<double>("us"));
  ASSIGN_OR_RETURN(algorithm.own_us, entry.Get<double>("own_us"));
  const auto attributes = entry.value.find("attributes");
  if (attributes == entry.value.end()) return algorithm;
  for (const auto& [key, value] : attributes->items()) {
    if (!value.is_number_integer()) return entry.ErrorAt("attributes", key + ": expected a number");
    algorithm.attributes[key] = value.get<int64_t>();
  }
  return algorithm;
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
  const json json_root = json::parse(text, nullptr, false);
  const JsonObject root = {json_root, "file", path};
  if (!json_root.is_object()) return root.Error("not a JSON object");
  TuningFile file;
  ASSIGN_OR_RETURN(file.tuned_for.cublaslt, root.Get<int64_t>("cublaslt"));
  ASSIGN_OR_RETURN(file.tuned_for.gpu, root.Get<std::string>("gpu"));
  ASSIGN_OR_RETURN(file.tuned_for.multiprocessors, root.Get<int32_t>("multiprocessors"));
  const auto gemms = json_root.find("gemms");
  if (gemms == json_root.end() || !gemms->is_array()) return root.Error("gemms: expected a list");
  for (size_t i = 0; i < gemms->size(); ++i) {
    const JsonObject entry = {(*gemms)[i], absl::StrFormat("gemms[%d]", i), path};
    if (!entry.value.is_object()) return entry.Error(entry.name + ": expected an object");
    ASSIGN_OR_RETURN(const GemmShape shape, ReadShape(entry));
    ASSIGN_OR_RETURN(TunedAlgorithm algorithm, ReadAlgorithm(entry));
    if (!file.algorithms.emplace(shape, std::move(algorithm)).second) {
      return entry.Error(entry.name + ": the same GEMM as an earlier entry");
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
