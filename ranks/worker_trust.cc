#include "ranks/worker_trust.h"

#include <openssl/rand.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "config/config_check.h"
#include "config/json_text.h"
#include "net/tls.h"

namespace foredraft {
namespace {

constexpr int64_t kLargestToken = 4096;
constexpr size_t kShortestToken = 32;
constexpr TlsKeys kWorkerTlsKeys = {
    .cert = "parallel.tls.cert", .key = "parallel.tls.key", .client_ca = "parallel.tls.ca"};

// The certificates of the port, and the keys that named them.
struct PortTls {
  TlsConfig files;  // client_ca empty: plain text
  TlsKeys keys;
};

PortTls PortTlsOf(const Config& config) {
  const WorkerTlsConfig& own = config.parallel.tls;
  if (own.ca.empty()) {
    return {.files = config.server.tls.client_ca.empty() ? TlsConfig{} : config.server.tls, .keys = {}};
  }
  PortTls tls{.files = {.cert = own.cert, .key = own.key, .client_ca = own.ca}, .keys = kWorkerTlsKeys};
  if (own.cert.empty()) {
    tls.files.cert = config.server.tls.cert;
    tls.files.key = config.server.tls.key;
    tls.keys.cert = TlsKeys().cert;
    tls.keys.key = TlsKeys().key;
  }
  return tls;
}

// Compares contents, because both authorities may be one file under two names.
absl::Status CheckOwnAuthority(const Config& config) {
  if (!TrustsCertificates(config.parallel) || config.server.tls.client_ca.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string workers, ReadPem("parallel.tls.ca", config.parallel.tls.ca));
  ASSIGN_OR_RETURN(const std::string clients, ReadPem("server.tls.client_ca", config.server.tls.client_ca));
  if (workers != clients) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "parallel.tls.ca: ", config.parallel.tls.ca, ": the same authority as server.tls.client_ca ",
      config.server.tls.client_ca,
      ", so any client's certificate could join as a rank; allowed another one, or parallel.token_file"));
}

// 256 random bits, as text.
std::string MakeWorkerSecret() {
  std::array<unsigned char, 32> bits;
  CHECK_EQ(RAND_bytes(bits.data(), static_cast<int>(bits.size())), 1) << "no random numbers";
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bits.data()), bits.size()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerPortTrust>> WorkerPortTrust::Load(const Config& config) {
  RETURN_IF_ERROR(CheckOwnAuthority(config));
  const PortTls tls = PortTlsOf(config);
  ASSIGN_OR_RETURN(std::unique_ptr<Certificates> certificates, Certificates::Load(tls.files, tls.keys));
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::ServerCredentials> credentials, certificates->MakeCredentials());
  ASSIGN_OR_RETURN(std::string token, ReadWorkerToken(config.parallel));
  return std::unique_ptr<WorkerPortTrust>(
      new WorkerPortTrust(config, std::move(certificates), std::move(credentials), std::move(token)));
}

WorkerPortTrust::WorkerPortTrust(const Config& config, std::unique_ptr<Certificates> certificates,
                                 std::shared_ptr<grpc::ServerCredentials> credentials, std::string token)
    : config_(config),
      certificates_(std::move(certificates)),
      credentials_(std::move(credentials)),
      own_secret_(MakeWorkerSecret()),
      token_(std::move(token)) {}

std::vector<std::string> WorkerPortTrust::secrets() const {
  std::vector<std::string> secrets = {own_secret_};
  std::lock_guard<std::mutex> lock(mutex_);
  if (!token_.empty()) secrets.push_back(token_);
  return secrets;
}

void WorkerPortTrust::Reload() {
  ReloadToken();
  ReloadCertificates();
}

void WorkerPortTrust::ReloadToken() {
  if (config_.parallel.token_file.empty()) return;
  absl::StatusOr<std::string> token = ReadWorkerToken(config_.parallel);
  if (!token.ok()) {
    Log(LogLevel::kError, "the workers' token in force stays: %s", token.status().message());
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const bool changed = token_ != *token;
  token_ = *std::move(token);
  if (changed) Log(LogLevel::kInfo, "parallel.token_file: %s: a new token", config_.parallel.token_file);
}

void WorkerPortTrust::ReloadCertificates() {
  if (!certificates_->encrypts()) return;
  absl::Status status = CheckOwnAuthority(config_);
  if (status.ok()) status = certificates_->Reload();
  if (!status.ok()) {
    Log(LogLevel::kError, "the certificate in use on the worker port stays: %s", status.message());
    return;
  }
  const PortTls tls = PortTlsOf(config_);
  Log(LogLevel::kInfo, "%s: %s: read again, for workers", tls.keys.cert, tls.files.cert);
  certificates_->WarnOfExpiry();
}

std::vector<std::string> WorkerPortFiles(const Config& config) {
  const PortTls tls = PortTlsOf(config);
  return {config.parallel.token_file, tls.files.cert, tls.files.key, tls.files.client_ca,
          config.server.tls.client_ca};
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> WorkerCredentials(const Config& config,
                                                                            const std::string& leader) {
  const PortTls tls = PortTlsOf(config);
  if (tls.files.client_ca.empty()) {
    if (IsLoopback(leader)) return grpc::InsecureChannelCredentials();
    return absl::InvalidArgumentError(absl::StrCat("--leader: ", leader,
                                                   ", allowed a loopback address; other addresses need "
                                                   "parallel.tls.ca, or server.tls.cert, key and client_ca"));
  }
  ASSIGN_OR_RETURN(const ServerPems pems, ReadServerPems(tls.files, tls.keys));
  return grpc::SslCredentials(
      {.pem_root_certs = pems.client_ca, .pem_private_key = pems.key, .pem_cert_chain = pems.cert});
}

bool TrustsCertificates(const ParallelConfig& parallel) {
  return !parallel.tls.ca.empty() && parallel.token_file.empty();
}

absl::StatusOr<std::string> ReadWorkerToken(const ParallelConfig& parallel) {
  const std::string& path = parallel.token_file;
  if (path.empty()) return std::string();
  const absl::StatusOr<std::string> text = ReadFileText(path, kLargestToken);
  if (!text.ok()) {
    return absl::Status(text.status().code(), absl::StrCat("parallel.token_file: ", text.status().message()));
  }
  const std::string token(absl::StripAsciiWhitespace(*text));
  if (token.size() < kShortestToken) {
    return absl::InvalidArgumentError(absl::StrCat("parallel.token_file: ", path, ": ", token.size(),
                                                   " characters, allowed at least ", kShortestToken));
  }
  if (!std::all_of(token.begin(), token.end(), [](char c) { return absl::ascii_isgraph(c); })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallel.token_file: ", path, ": allowed one line of printable ASCII characters without blanks"));
  }
  return token;
}

absl::StatusOr<std::string> TakeInheritedSecret(int file) {
  char buffer[256];
  const ssize_t count = read(file, buffer, sizeof buffer);
  const int error = errno;
  close(file);
  if (count > 0) return std::string(buffer, static_cast<size_t>(count));
  return absl::InvalidArgumentError(absl::StrCat(
      "--secret-fd: ", file, ": cannot be read: ", count == 0 ? "it is empty" : std::strerror(error)));
}

}  // namespace foredraft
