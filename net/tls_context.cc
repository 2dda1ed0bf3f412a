#include "net/tls_context.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;
using CertificatePtr = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

absl::Status Refuse(const std::string& key) {
  char text[256] = "";
  ERR_error_string_n(ERR_get_error(), text, sizeof(text));
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", text));
}

BioPtr Reader(const std::string& pem) {
  return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free};
}

CertificatePtr NextCertificate(const BioPtr& bio) {
  return {PEM_read_bio_X509(bio.get(), nullptr, nullptr, const_cast<char*>("")), X509_free};
}

// The first certificate is the server's, those after it lead to its authority.
absl::Status UseChain(SSL_CTX* context, const std::string& pem, const char* key) {
  const BioPtr bio = Reader(pem);
  const CertificatePtr own = NextCertificate(bio);
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) return Refuse(key);
  for (CertificatePtr next = NextCertificate(bio); next != nullptr; next = NextCertificate(bio)) {
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1) return Refuse(key);
  }
  ERR_clear_error();  // the end of the file is an error to OpenSSL
  return absl::OkStatus();
}

absl::Status UseKey(SSL_CTX* context, const std::string& pem, const char* name) {
  const BioPtr bio = Reader(pem);
  const KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, const_cast<char*>("")),
                   EVP_PKEY_free);
  return key != nullptr && SSL_CTX_use_PrivateKey(context, key.get()) == 1 ? absl::OkStatus() : Refuse(name);
}

absl::Status RequireClientCertificates(SSL_CTX* context, const std::string& pem, const char* key) {
  const BioPtr bio = Reader(pem);
  int count = 0;
  for (CertificatePtr ca = NextCertificate(bio); ca != nullptr; ca = NextCertificate(bio), ++count) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), ca.get()) != 1) return Refuse(key);
  }
  if (count == 0) return Refuse(key);
  ERR_clear_error();
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return absl::OkStatus();
}

// A client that offers protocols, but not HTTP/2, gets an alert.
int SelectHttp2(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                unsigned int offered_size, void*) {
  static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  unsigned char* selected = nullptr;
  const int found = SSL_select_next_proto(&selected, out_size, kHttp2, sizeof(kHttp2), offered, offered_size);
  *out = selected;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

}  // namespace

absl::StatusOr<TlsContextPtr> MakeTlsContext(const ServerPems& pems, const TlsKeys& keys, Protocol protocol) {
  TlsContextPtr context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return Refuse(keys.cert);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // Without resumption: a session would outlive the authority that let its client in.
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  RETURN_IF_ERROR(UseChain(context.get(), pems.cert, keys.cert));
  RETURN_IF_ERROR(UseKey(context.get(), pems.key, keys.key));
  if (!pems.client_ca.empty()) {
    RETURN_IF_ERROR(RequireClientCertificates(context.get(), pems.client_ca, keys.client_ca));
  }
  if (protocol == Protocol::kHttp2) SSL_CTX_set_alpn_select_cb(context.get(), SelectHttp2, nullptr);
  return context;
}

}  // namespace foredraft
