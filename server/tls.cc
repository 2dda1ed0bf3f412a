#include "server/tls.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;
using CertificatePtr = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

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

}  // namespace

absl::StatusOr<std::string> ReadPem(const char* key, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) {
    return absl::NotFoundError(
        absl::StrCat(key, ": ", path, ": cannot be read, allowed a readable PEM file"));
  }
  return content.str();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(const TlsConfig& tls,
                                                                           const TlsKeys& keys) {
  if (tls.cert.empty() && tls.key.empty() && tls.client_ca.empty()) return grpc::InsecureServerCredentials();
  if (tls.cert.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(keys.cert, ": empty, required with key or client_ca"));
  }
  if (tls.key.empty())
    return absl::InvalidArgumentError(absl::StrCat(keys.key, ": empty, required with cert"));
  ASSIGN_OR_RETURN(const std::string cert, ReadPem(keys.cert, tls.cert));
  ASSIGN_OR_RETURN(const std::string key, ReadPem(keys.key, tls.key));
  const CertificatePtr parsed_cert = ParseCertificate(cert);
  if (parsed_cert == nullptr) return NotPem(keys.cert, tls.cert, "certificate");
  const KeyPtr parsed_key = ParseKey(key);
  if (parsed_key == nullptr) return NotPem(keys.key, tls.key, "private key without passphrase");
  if (X509_check_private_key(parsed_cert.get(), parsed_key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(keys.key, ": ", tls.key, ": does not belong to ", keys.cert, " ", tls.cert));
  }
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({.private_key = key, .cert_chain = cert});
  if (!tls.client_ca.empty()) {
    ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem(keys.client_ca, tls.client_ca));
    if (ParseCertificate(options.pem_root_certs) == nullptr) {
      return NotPem(keys.client_ca, tls.client_ca, "certificate");
    }
    options.client_certificate_request = GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  return grpc::SslServerCredentials(options);
}

}  // namespace foredraft
