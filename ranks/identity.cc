#include "ranks/identity.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fnv.h"
#include "config/json_text.h"

namespace foredraft {
namespace {

std::string Hex(uint64_t hash) { return absl::StrFormat("%08x", static_cast<uint32_t>(hash ^ (hash >> 32))); }

constexpr int kSamples = 16;
constexpr int64_t kSampleBytes = 4096;

absl::Status AddSamples(const std::filesystem::path& path, uint64_t& hash) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {  // opening a FIFO waits for its writer
    return absl::NotFoundError(absl::StrCat(path.string(), ": not a regular file"));
  }
  std::ifstream file(path, std::ios::binary);
  const int64_t size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (!file || error) return absl::NotFoundError(absl::StrCat(path.string(), ": cannot be read"));
  hash = Fnv1a(absl::StrCat(path.filename().string(), ":", size, ";"), hash);
  std::string sample(kSampleBytes, '\0');
  for (int i = 0; i < kSamples; ++i) {
    const int64_t last_start = std::max<int64_t>(size - kSampleBytes, 0);
    file.clear();
    file.seekg(last_start * i / (kSamples - 1));
    file.read(sample.data(), kSampleBytes);
    hash = Fnv1a(std::string_view(sample.data(), static_cast<size_t>(file.gcount())), hash);
  }
  return absl::OkStatus();
}

absl::Status Differs(const std::string& what, const std::string& worker, const std::string& leader) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", worker, ", the leader has ", leader));
}

}  // namespace

absl::StatusOr<std::string> ModelHash(const std::string& checkpoint_dir) {
  uint64_t hash = kFnvOffset;
  constexpr int64_t kLargestConfig = int64_t{1} << 24;
  const absl::StatusOr<std::string> config = ReadFileText(checkpoint_dir + "/config.json", kLargestConfig);
  if (!config.ok()) return config.status();
  hash = Fnv1a(*config, hash);
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint_dir, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    if (absl::Status status = AddSamples(file, hash); !status.ok()) return status;
  }
  return Hex(hash);
}

absl::Status CheckSameIdentity(const GroupIdentity& leader, const GroupIdentity& worker) {
  if (worker.version != leader.version) return Differs("version", worker.version, leader.version);
  if (worker.model_hash != leader.model_hash) {
    return Differs("model hash", worker.model_hash, leader.model_hash);
  }
  const auto [mine, theirs] = std::mismatch(worker.config_keys.begin(), worker.config_keys.end(),
                                            leader.config_keys.begin(), leader.config_keys.end());
  if (mine != worker.config_keys.end() || theirs != leader.config_keys.end()) {
    if (mine == worker.config_keys.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("configuration: the leader has ", *theirs, ", which this worker does not know"));
    }
    if (theirs == leader.config_keys.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("configuration: ", *mine, ", which the leader does not know"));
    }
    return Differs("configuration", *mine, *theirs);
  }
  if (!leader.numerics_class.empty() && worker.numerics_class != leader.numerics_class) {
    return absl::FailedPreconditionError(absl::StrCat("numerics class: ", worker.numerics_class,
                                                      ", the ranks that have joined have ",
                                                      leader.numerics_class));
  }
  return absl::OkStatus();
}

}  // namespace foredraft
