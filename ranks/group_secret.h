#pragma once

// Mutual authentication of a worker and the leader of its group: each proves that it knows the group's
// secret, and neither sends it. A stranger on the leader's address learns nothing that lets it join, and the
// worker refuses its plans.
//
// Each end draws a nonce for the call. A proof is HMAC-SHA256 (RFC 2104) with the secret as key over the
// prover's role and both nonces, so it is good for one call and one end:
//
//   worker                                              leader
//   metadata: its nonce, opening proof              ->  which of its secrets it is; else UNAUTHENTICATED
//                                                   <-  challenge: its nonce, its proof
//   checks the proof                                ->  join with its proof
//
// The opening proof covers the worker's nonce alone, so an eavesdropper can replay it. It only keeps
// strangers from opening streams; a worker joins by its second proof. Nothing here stops a relay that passes
// every message on: TLS does. Pure, except for MakeNonce.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foredraft {

enum class GroupEnd { kLeader, kWorker };

// 32 random bytes.
std::string MakeNonce();

// `end`'s proof of a call, 32 bytes.
std::string ProofOf(GroupEnd end, std::string_view secret, std::string_view worker_nonce,
                    std::string_view leader_nonce);

// Compares in time that does not depend on the content.
bool SameProof(std::string_view a, std::string_view b);

// The value of `authorization` in a worker's call: "HMAC-SHA256 NONCE PROOF", in hex digits.
std::string OpeningOf(std::string_view secret, std::string_view worker_nonce);

struct Opening {
  std::string worker_nonce;
  std::string secret;
};
// Reads a call's `authorization`. nullopt unless one of `secrets` proves it.
std::optional<Opening> ReadOpening(std::string_view authorization, const std::vector<std::string>& secrets);

}  // namespace foredraft
