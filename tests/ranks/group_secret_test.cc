#include "ranks/group_secret.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"

namespace foredraft {
namespace {

const std::string kWorkerNonce(32, 'w');
const std::string kLeaderNonce(32, 'l');
const std::vector<std::string> kSecrets = {"the first secret", "the second secret"};

// By Python's hmac.new(b"the first secret", b"foredraft worker:" + b"w" * 32 + b"l" * 32, "sha256").
TEST(GroupSecret, ProofsAreHmacSha256) {
  EXPECT_EQ(absl::BytesToHexString(ProofOf(GroupEnd::kWorker, kSecrets[0], kWorkerNonce, kLeaderNonce)),
            "d957be0e50119c60e903ebedfda64d4ff987242864b9e78bc1303171aa8a6a34");
}

TEST(GroupSecret, AProofIsOfOneEndOneSecretAndOneCall) {
  const std::string proof = ProofOf(GroupEnd::kWorker, kSecrets[0], kWorkerNonce, kLeaderNonce);
  EXPECT_TRUE(SameProof(proof, ProofOf(GroupEnd::kWorker, kSecrets[0], kWorkerNonce, kLeaderNonce)));
  EXPECT_FALSE(SameProof(proof, ProofOf(GroupEnd::kLeader, kSecrets[0], kWorkerNonce, kLeaderNonce)));
  EXPECT_FALSE(SameProof(proof, ProofOf(GroupEnd::kWorker, kSecrets[1], kWorkerNonce, kLeaderNonce)));
  EXPECT_FALSE(SameProof(proof, ProofOf(GroupEnd::kWorker, kSecrets[0], kLeaderNonce, kLeaderNonce)));
  EXPECT_FALSE(SameProof(proof, ProofOf(GroupEnd::kWorker, kSecrets[0], kWorkerNonce, kWorkerNonce)));
  EXPECT_FALSE(SameProof(proof, ""));
  EXPECT_NE(MakeNonce(), MakeNonce());
}

TEST(GroupSecret, AnOpeningSaysWhichSecretAndNotWhatItIs) {
  const std::string opening = OpeningOf(kSecrets[1], kWorkerNonce);
  EXPECT_EQ(opening.find("secret"), std::string::npos);
  const std::optional<Opening> read = ReadOpening(opening, kSecrets);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->secret, kSecrets[1]);
  EXPECT_EQ(read->worker_nonce, kWorkerNonce);
  EXPECT_FALSE(ReadOpening(opening, {kSecrets[0]}).has_value());
  EXPECT_FALSE(ReadOpening(opening, {}).has_value());
}

TEST(GroupSecret, AnythingElseIsNoOpening) {
  const std::string opening = OpeningOf(kSecrets[0], kWorkerNonce);
  for (size_t at = 0; at < opening.size(); ++at) {
    std::string changed = opening;
    changed[at] = changed[at] == '1' ? '2' : '1';
    EXPECT_FALSE(ReadOpening(changed, kSecrets).has_value()) << at;
    EXPECT_FALSE(ReadOpening(opening.substr(0, at), kSecrets).has_value()) << at;
  }
  EXPECT_FALSE(ReadOpening(opening + "0", kSecrets).has_value());
}

}  // namespace
}  // namespace foredraft
