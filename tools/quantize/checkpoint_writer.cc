#include "tools/quantize/checkpoint_writer.h"

#include <filesystem>
#include <fstream>
#include <span>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/checkpoint/safetensors.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

// Tensors [first, last) of a list.
struct Shard {
  size_t first = 0;
  size_t last = 0;
};

std::vector<Shard> CutShards(const std::vector<StoredTensor>& tensors, int64_t max_shard_bytes) {
  std::vector<Shard> shards(1);
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i > shards.back().first && bytes + tensors[i].bytes() > max_shard_bytes) {
      shards.push_back({i, i});
      bytes = 0;
    }
    bytes += tensors[i].bytes();
    shards.back().last = i + 1;
  }
  return shards;
}

std::string Header(std::span<const StoredTensor> tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t offset = 0;
  for (const StoredTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data, as other writers do
  return text;
}

absl::Status CloseFile(std::ofstream& file, const std::string& path) {
  file.close();
  if (file) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat("%s: cannot be written", path));
}

absl::Status WriteShard(const std::vector<StoredTensor>& tensors, const Shard& shard, const std::string& path,
                        const TensorWriter& write) {
  std::ofstream file(path, std::ios::binary);
  const std::string header = Header(std::span(tensors).subspan(shard.first, shard.last - shard.first));
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  file.write(length, sizeof(length));
  file << header;
  for (size_t i = shard.first; i < shard.last && file; ++i) {
    const std::streampos begin = file.tellp();
    RETURN_IF_ERROR(write(i, file));
    CHECK(!file || file.tellp() - begin == tensors[i].bytes()) << tensors[i].name;
  }
  return CloseFile(file, path);
}

}  // namespace

absl::Status MakeOutputDir(const std::string& dir, const std::string& command) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (!error && !std::filesystem::is_empty(dir, error) && !error) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "%s: the directory is not empty; %s overwrites nothing, so name a new or an empty directory", dir,
        command));
  }
  if (error) return absl::InvalidArgumentError(absl::StrFormat("%s: %s", dir, error.message()));
  return absl::OkStatus();
}

absl::Status WriteJsonFile(const Json& json, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << json.dump(2) << "\n";
  return CloseFile(file, path);
}

absl::StatusOr<WrittenCheckpoint> WriteCheckpoint(const std::vector<StoredTensor>& tensors,
                                                  const std::string& dir, int64_t max_shard_bytes,
                                                  const TensorWriter& write) {
  const std::vector<Shard> shards = CutShards(tensors, max_shard_bytes);
  WrittenCheckpoint written{.tensor_count = static_cast<int64_t>(tensors.size()),
                            .shard_count = static_cast<int>(shards.size())};
  Json weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1
                                 ? "model.safetensors"
                                 : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
    RETURN_IF_ERROR(WriteShard(tensors, shards[i], dir + "/" + name, write));
    for (size_t tensor = shards[i].first; tensor < shards[i].last; ++tensor) {
      weight_map[tensors[tensor].name] = name;
      written.bytes += tensors[tensor].bytes();
    }
  }
  if (shards.size() > 1) {
    RETURN_IF_ERROR(WriteJsonFile({{"metadata", {{"total_size", written.bytes}}}, {"weight_map", weight_map}},
                                  dir + "/model.safetensors.index.json"));
  }
  return written;
}

}  // namespace foredraft
