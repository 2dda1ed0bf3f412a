#include "net/certificates.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;
using grpc::experimental::TlsServerCredentialsOptions;

constexpr unsigned kWatchSeconds = 1;
constexpr absl::Duration kSoon = absl::Hours(24 * 14);

int NewMemoryFile() {
  const int fd = memfd_create("foredraft-tls", MFD_CLOEXEC);
  CHECK_GE(fd, 0) << "memfd_create: " << std::strerror(errno);
  return fd;
}

// gRPC 1.51 and gRPC 1.83 name the certificate providers differently. In a template only the branch that this
// gRPC knows is compiled.
template <class Options>
Options WithIdentity(const std::shared_ptr<FileWatcherCertificateProvider>& provider) {
  if constexpr (requires { Options::Create(provider); }) {
    return *Options::Create(provider);
  } else {
    Options options(provider);
    options.watch_identity_key_cert_pairs();
    return options;
  }
}

template <class Options>
void RequireClientCertificates(const std::shared_ptr<FileWatcherCertificateProvider>& provider,
                               Options& options) {
  if constexpr (requires { options.set_root_certificate_provider(provider); }) {
    options.set_root_certificate_provider(provider);
  } else {
    options.watch_root_certs();  // of the provider of the identity
  }
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
}

// `identity` and `client_ca` are paths; the second is empty where clients need no certificate.
std::shared_ptr<grpc::ServerCredentials> WatchingCredentials(const std::string& identity,
                                                             const std::string& client_ca) {
  const auto provider =
      std::make_shared<FileWatcherCertificateProvider>(identity, identity, client_ca, kWatchSeconds);
  auto options = WithIdentity<TlsServerCredentialsOptions>(provider);
  if (!client_ca.empty()) RequireClientCertificates(provider, options);
  return grpc::experimental::TlsServerCredentials(options);
}

}  // namespace

MemoryFile::MemoryFile() : fd_(NewMemoryFile()) {}

MemoryFile::~MemoryFile() { close(fd_); }

void MemoryFile::Replace(const std::string& content) {
  const int next = NewMemoryFile();
  CHECK_EQ(write(next, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  CHECK_GE(dup3(next, fd_, O_CLOEXEC), 0) << std::strerror(errno);
  close(next);
}

std::string MemoryFile::path() const { return absl::StrCat("/proc/self/fd/", fd_); }

absl::StatusOr<std::unique_ptr<Certificates>> Certificates::Load(const TlsConfig& tls, const TlsKeys& keys) {
  std::unique_ptr<Certificates> certificates(new Certificates(tls, keys));
  RETURN_IF_ERROR(certificates->Reload());
  certificates->WarnOfExpiry();
  return certificates;
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> Certificates::MakeCredentials() const {
  if (!encrypts()) return grpc::InsecureServerCredentials();
  const std::string identity = identity_.path();
  if (access(identity.c_str(), R_OK) != 0) {
    return absl::UnavailableError(
        absl::StrCat(keys_.cert, ": ", identity, ": ", std::strerror(errno), "; TLS needs /proc"));
  }
  return WatchingCredentials(identity, tls_.client_ca.empty() ? "" : client_ca_.path());
}

TlsContextPtr Certificates::http2_context() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return http2_context_;
}

absl::Status Certificates::Reload() {
  ASSIGN_OR_RETURN(const ServerPems pems, ReadServerPems(tls_, keys_));
  if (!encrypts()) return absl::OkStatus();
  ASSIGN_OR_RETURN(TlsContextPtr context, MakeTlsContext(pems, keys_, Protocol::kHttp2));
  std::lock_guard<std::mutex> lock(mutex_);
  identity_.Replace(absl::StrCat(pems.key, "\n", pems.cert));
  client_ca_.Replace(pems.client_ca);
  http2_context_ = std::move(context);
  expiry_seconds_ = pems.expiry_seconds;
  return absl::OkStatus();
}

int64_t Certificates::expiry_seconds() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return expiry_seconds_;
}

void Certificates::WarnOfExpiry() const {
  const int64_t expiry = expiry_seconds();
  if (expiry == 0) return;
  const absl::Time end = absl::FromUnixSeconds(expiry);
  const absl::Time now = absl::Now();
  if (end - now > kSoon) return;
  Log(LogLevel::kWarning, "%s: %s: %s on %s UTC: clients %s it", keys_.cert, tls_.cert,
      end < now ? "expired" : "expires", absl::FormatTime("%Y-%m-%d %H:%M", end, absl::UTCTimeZone()),
      end < now ? "refuse" : "will then refuse");
}

}  // namespace foredraft
