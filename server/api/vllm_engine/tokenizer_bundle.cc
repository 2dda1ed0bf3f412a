#include "server/api/vllm_engine/tokenizer_bundle.h"

#include <openssl/evp.h>
#include <zip.h>

#include <filesystem>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

// The files that a tokenizer's loader looks for; one of the first two is required.
constexpr const char* kFiles[] = {"tokenizer.json",    "tiktoken.model",         "tokenizer_config.json",
                                  "config.json",       "generation_config.json", "special_tokens_map.json",
                                  "added_tokens.json", "chat_template.jinja",    "chat_template.json"};

absl::Status ZipError(const std::string& name, zip_error_t* error) {
  return absl::InternalError(absl::StrCat(name, ": cannot be packed: ", zip_error_strerror(error)));
}

absl::Status AddFiles(const std::filesystem::path& directory, zip_t* archive) {
  for (const char* name : kFiles) {
    const std::string path = directory / name;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    zip_source_t* file = zip_source_file(archive, path.c_str(), 0, -1);
    if (file == nullptr) return ZipError(path, zip_get_error(archive));
    const zip_int64_t index = zip_file_add(archive, name, file, ZIP_FL_ENC_UTF_8);
    if (index < 0) {
      zip_source_free(file);
      return ZipError(path, zip_get_error(archive));
    }
    // Files are stored uncompressed and with one fixed time: the same files give the same bytes and hash.
    zip_set_file_compression(archive, static_cast<zip_uint64_t>(index), ZIP_CM_STORE, 0);
    zip_file_set_dostime(archive, static_cast<zip_uint64_t>(index), 0, (1 << 5) | 1, 0);  // 1980-01-01
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadAll(zip_source_t* buffer) {
  zip_stat_t stat;
  zip_stat_init(&stat);
  if (zip_source_stat(buffer, &stat) != 0 || zip_source_open(buffer) != 0) {
    return ZipError("archive", zip_source_error(buffer));
  }
  std::string bytes(stat.size, '\0');
  const zip_int64_t count = zip_source_read(buffer, bytes.data(), bytes.size());
  zip_source_close(buffer);
  if (count != static_cast<zip_int64_t>(bytes.size())) return ZipError("archive", zip_source_error(buffer));
  return bytes;
}

absl::StatusOr<std::string> Pack(const std::filesystem::path& directory) {
  zip_error_t error;
  zip_error_init(&error);
  const std::unique_ptr<zip_source_t, decltype(&zip_source_free)> buffer(
      zip_source_buffer_create(nullptr, 0, 0, &error), zip_source_free);
  CHECK(buffer != nullptr) << zip_error_strerror(&error);
  zip_source_keep(buffer.get());  // zip_close gives up the archive's reference
  zip_t* archive = zip_open_from_source(buffer.get(), ZIP_TRUNCATE, &error);
  if (archive == nullptr) {
    zip_source_free(buffer.get());
    return ZipError("archive", &error);
  }
  absl::Status status = AddFiles(directory, archive);
  if (status.ok() && zip_close(archive) != 0) status = ZipError("archive", zip_get_error(archive));
  if (!status.ok()) {
    zip_discard(archive);
    return status;
  }
  return ReadAll(buffer.get());
}

std::string Sha256Hex(const std::string& bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

}  // namespace

absl::StatusOr<TokenizerBundle> MakeTokenizerBundle(const std::string& directory) {
  std::error_code error;
  const auto has = [&](const char* name) {
    return std::filesystem::exists(std::filesystem::path(directory) / name, error);
  };
  if (!has(kFiles[0]) && !has(kFiles[1])) {
    return absl::NotFoundError(absl::StrCat(directory, ": no ", kFiles[0]));
  }
  TokenizerBundle bundle;
  ASSIGN_OR_RETURN(bundle.zip, Pack(directory));
  bundle.sha256 = Sha256Hex(bundle.zip);
  return bundle;
}

}  // namespace foredraft
