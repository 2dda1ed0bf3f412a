#include "ranks/group_secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/hex.h"

namespace foredraft {
namespace {

constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
constexpr std::string_view kScheme = "HMAC-SHA256 ";
constexpr size_t kOpeningSize = kScheme.size() + 2 * kNonceBytes + 1 + 2 * kProofBytes;

// Nonces have one length, so no two lists of parts give the same text.
std::string Mac(std::string_view secret, std::string_view role, std::string_view worker_nonce,
                std::string_view leader_nonce) {
  std::string text = "foredraft ";
  text.append(role).append(":").append(worker_nonce).append(leader_nonce);
  std::array<unsigned char, kProofBytes> proof;
  unsigned int size = 0;
  CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), proof.data(),
             &size) != nullptr);
  CHECK_EQ(size, kProofBytes);
  return std::string(proof.begin(), proof.end());
}

std::string OpeningProof(std::string_view secret, std::string_view worker_nonce) {
  return Mac(secret, "opening", worker_nonce, "");
}

std::string Digits(std::string_view bytes) {
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

}  // namespace

std::string MakeNonce() {
  std::array<unsigned char, kNonceBytes> bytes;
  CHECK_EQ(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())), 1) << "no random numbers";
  return std::string(bytes.begin(), bytes.end());
}

std::string ProofOf(GroupEnd end, std::string_view secret, std::string_view worker_nonce,
                    std::string_view leader_nonce) {
  return Mac(secret, end == GroupEnd::kLeader ? "leader" : "worker", worker_nonce, leader_nonce);
}

bool SameProof(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string OpeningOf(std::string_view secret, std::string_view worker_nonce) {
  std::string opening(kScheme);
  opening.append(Digits(worker_nonce)).append(" ").append(Digits(OpeningProof(secret, worker_nonce)));
  return opening;
}

std::optional<Opening> ReadOpening(std::string_view authorization, const std::vector<std::string>& secrets) {
  if (authorization.size() != kOpeningSize || !authorization.starts_with(kScheme)) return std::nullopt;
  const std::string_view nonce_digits = authorization.substr(kScheme.size(), 2 * kNonceBytes);
  const std::string_view proof_digits = authorization.substr(kOpeningSize - 2 * kProofBytes);
  std::array<unsigned char, kNonceBytes> nonce_bytes;
  std::array<unsigned char, kProofBytes> proof_bytes;
  if (!ReadHex(nonce_digits, nonce_bytes) || !ReadHex(proof_digits, proof_bytes) ||
      authorization[kOpeningSize - 2 * kProofBytes - 1] != ' ') {
    return std::nullopt;
  }
  const std::string nonce(nonce_bytes.begin(), nonce_bytes.end());
  const std::string proof(proof_bytes.begin(), proof_bytes.end());
  std::optional<Opening> opening;  // all are compared, so that the time does not tell which one matches
  for (const std::string& secret : secrets) {
    if (SameProof(proof, OpeningProof(secret, nonce))) opening = Opening{nonce, secret};
  }
  return opening;
}

}  // namespace foredraft
