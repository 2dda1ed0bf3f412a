#include "net/tls.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "config/json_text.h"

namespace foredraft {
namespace {

using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;
using CertificatePtr = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

constexpr int64_t kMaxPemBytes = 1 << 20;

CertificatePtr ParseCertificate(const std::string& pem) {
  const BioPtr bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  return {PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), X509_free};
}

KeyPtr ParseKey(const std::string& pem) {
  const BioPtr bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  // The empty passphrase keeps OpenSSL from prompting for one.
  return {PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, const_cast<char*>("")), EVP_PKEY_free};
}

absl::Status NotPem(const char* key, const std::string& path, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", path, ": not a PEM ", what));
}

int64_t ExpirySeconds(X509* certificate) {
  std::tm time{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &time) != 1) return 0;
  return timegm(&time);
}

std::string ShowTime(int64_t seconds) {
  return absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixSeconds(seconds), absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<std::string> ReadPem(const char* key, const std::string& path) {
  absl::StatusOr<std::string> text = ReadFileText(path, kMaxPemBytes);
  if (text.ok()) return text;
  return absl::NotFoundError(absl::StrCat(key, ": ", path, ": cannot be read, allowed a readable PEM file"));
}

absl::StatusOr<ServerPems> ReadServerPems(const TlsConfig& tls, const TlsKeys& keys) {
  ServerPems pems;
  if (tls.cert.empty() && tls.key.empty() && tls.client_ca.empty()) return pems;
  if (tls.cert.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(keys.cert, ": empty, required with key or client_ca"));
  }
  if (tls.key.empty())
    return absl::InvalidArgumentError(absl::StrCat(keys.key, ": empty, required with cert"));
  ASSIGN_OR_RETURN(pems.cert, ReadPem(keys.cert, tls.cert));
  ASSIGN_OR_RETURN(pems.key, ReadPem(keys.key, tls.key));
  const CertificatePtr cert = ParseCertificate(pems.cert);
  if (cert == nullptr) return NotPem(keys.cert, tls.cert, "certificate");
  const KeyPtr key = ParseKey(pems.key);
  if (key == nullptr) return NotPem(keys.key, tls.key, "private key without passphrase");
  if (X509_check_private_key(cert.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(keys.key, ": ", tls.key, ": does not belong to ", keys.cert, " ", tls.cert));
  }
  pems.expiry_seconds = ExpirySeconds(cert.get());
  if (pems.expiry_seconds < absl::ToUnixSeconds(absl::Now())) {
    return absl::InvalidArgumentError(
        absl::StrCat(keys.cert, ": ", tls.cert, ": expired on ", ShowTime(pems.expiry_seconds),
                     " UTC, so every client refuses it; allowed a certificate that is valid now"));
  }
  if (!tls.client_ca.empty()) {
    ASSIGN_OR_RETURN(pems.client_ca, ReadPem(keys.client_ca, tls.client_ca));
    if (ParseCertificate(pems.client_ca) == nullptr) {
      return NotPem(keys.client_ca, tls.client_ca, "certificate");
    }
  }
  return pems;
}

}  // namespace foredraft
