#include "engine/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

constexpr int64_t kMaxIndexBytes = int64_t{256} << 20;

// True for a plain file name. A name with a separator could leave the checkpoint's directory.
bool IsShardName(std::string_view name) {
  return name.ends_with(".safetensors") && name[0] != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

absl::StatusOr<absl::flat_hash_map<std::string, std::string>> ParseShardIndex(std::string_view json,
                                                                              const std::string& file) {
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(json, file));
  if (!object.is_object() || !object.contains("weight_map") || !object["weight_map"].is_object()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: weight_map: missing, allowed an object", file));
  }
  absl::flat_hash_map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : object["weight_map"].items()) {
    if (!shard.is_string() || !IsShardName(shard.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: weight_map.%s: %s, allowed names of .safetensors files beside the index", file,
                          tensor, ShowJson(shard)));
    }
    shards[tensor] = shard.get<std::string>();
  }
  return shards;
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& dir, const std::string& unlisted) {
  Checkpoint checkpoint;
  std::error_code error;
  const std::string single = dir + "/model.safetensors";
  if (std::filesystem::exists(single, error)) {
    checkpoint.main_file_ = single;
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(single));
    checkpoint.files_.push_back(std::move(file));
  } else {
    RETURN_IF_ERROR(checkpoint.OpenShards(dir));
  }
  const std::string extra = dir + "/" + unlisted;
  const bool listed = std::any_of(checkpoint.files_.begin(), checkpoint.files_.end(),
                                  [&](const SafetensorsFile& file) { return file.path() == extra; });
  if (!unlisted.empty() && !listed && std::filesystem::exists(extra, error)) {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(extra));
    checkpoint.files_.push_back(std::move(file));
  }
  RETURN_IF_ERROR(checkpoint.IndexTensors());
  return checkpoint;
}

absl::Status Checkpoint::IndexTensors() {
  for (const SafetensorsFile& file : files_) {
    for (const TensorEntry& entry : file.tensors()) RETURN_IF_ERROR(Add(entry.name, {&file, &entry}));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Add(const std::string& name, const TensorLocation& tensor) {
  const auto [other, is_new] = index_.try_emplace(name, tensors_.size());
  if (!is_new) {
    const TensorLocation& first = tensors_[other->second];
    const std::string as = first.entry->name == tensor.entry->name ? "" : " as " + first.entry->name;
    return absl::InvalidArgumentError(absl::StrFormat("%s: tensor %s: also in %s%s", tensor.file->path(),
                                                      tensor.entry->name, first.file->path(), as));
  }
  tensors_.push_back(tensor);
  return absl::OkStatus();
}

absl::Status Checkpoint::Rename(const std::function<std::vector<NamedPart>(const TensorEntry&)>& parts_of) {
  index_.clear();
  for (const TensorLocation& stored : std::exchange(tensors_, {})) {
    const std::vector<NamedPart> parts = parts_of(*stored.entry);
    if (parts.size() == 1 && parts[0].shape == stored.entry->shape) {
      RETURN_IF_ERROR(Add(parts[0].name, stored));
      continue;
    }
    for (const NamedPart& part : parts) {
      int64_t bytes = SafetensorsElementBytes(stored.entry->dtype);
      for (const int64_t size : part.shape) bytes *= size;
      CHECK_LE(part.begin + bytes, stored.entry->bytes) << stored.entry->name;
      parts_.push_back({.name = absl::StrFormat("%s (%s)", stored.entry->name, part.name),
                        .dtype = stored.entry->dtype,
                        .shape = part.shape,
                        .begin = stored.entry->begin + part.begin,
                        .bytes = bytes});
      RETURN_IF_ERROR(Add(part.name, {stored.file, &parts_.back()}));
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::OpenShards(const std::string& dir) {
  main_file_ = dir + "/model.safetensors.index.json";
  const absl::StatusOr<std::string> text = ReadFileText(main_file_, kMaxIndexBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrFormat(
        "%s: no checkpoint: neither model.safetensors nor model.safetensors.index.json", dir));
  }
  RETURN_IF_ERROR(text.status());
  ASSIGN_OR_RETURN(const auto shard_of, ParseShardIndex(*text, main_file_));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) shards.insert(shard);
  size_t found = 0;
  for (const std::string& shard : shards) {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(dir + "/" + shard));
    for (const TensorEntry& entry : file.tensors()) {
      const auto it = shard_of.find(entry.name);
      if (it == shard_of.end() || it->second != shard) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: tensor %s: model.safetensors.index.json puts it in %s", file.path(),
                            entry.name, it == shard_of.end() ? "no file" : it->second));
      }
    }
    found += file.tensors().size();
    files_.push_back(std::move(file));
  }
  if (found == shard_of.size()) return absl::OkStatus();
  for (const auto& [tensor, shard] : shard_of) {
    for (const SafetensorsFile& file : files_) {
      if (file.path() == dir + "/" + shard && file.Find(tensor) == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s: tensor %s: missing, but the index puts it here", file.path(), tensor));
      }
    }
  }
  return absl::OkStatus();
}

TensorLocation Checkpoint::Find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? TensorLocation{} : tensors_[it->second];
}

}  // namespace foredraft
