#pragma once

// Who may call: bearer tokens with a role, from server.auth.tokens_file, which has only the tokens' hashes.
// Thread-safe.

#include <grpcpp/server_context.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/call_context.h"
#include "server/api/guess_delay.h"
#include "server/output/metrics.h"

namespace foredraft {

// Each role may do what the roles before it may.
enum class Role { kMetrics, kApi, kAdmin };
const char* RoleName(Role role);
// INVALID_ARGUMENT: "<text>, allowed api, admin, metrics".
absl::StatusOr<Role> ParseRole(std::string_view text);

using TokenHash = std::array<unsigned char, 32>;  // SHA-256
TokenHash HashToken(std::string_view token);
std::string HexOf(const TokenHash& hash);

// A line of the file: "api alice 9f86d0...", without the line's end.
std::string TokenLine(Role role, std::string_view name, std::string_view token);

class TokenTable {
 public:
  struct Entry {
    Role role;
    std::string name;
    TokenHash hash;
  };

  // `text` is the file's: a token per line; empty lines and lines that begin with # are skipped.
  // INVALID_ARGUMENT names `file`, line and what is wrong; it never shows a hash. A file without a token, or
  // whose last line has no line break, is refused: it may still be being written.
  static absl::StatusOr<TokenTable> Parse(std::string_view text, const std::string& file);
  static absl::StatusOr<TokenTable> Read(const std::string& file);

  // The line with the token; null if there is none. Takes the same time whichever line it is.
  const Entry* Find(std::string_view token) const;
  bool HasRole(Role role) const;
  size_t size() const { return entries_.size(); }

 private:
  std::vector<Entry> entries_;
};

class Access {
 public:
  // Lets everyone in until Require is called.
  Access() = default;

  // Requires a token of `table` from now on.
  void Require(TokenTable table);
  // `admitted` is called for each call that Check lets in, with its connection (CallContext::connection).
  // Call this once, before the first Check.
  void OnAdmitted(std::function<void(std::string_view connection)> admitted) {
    admitted_ = std::move(admitted);
  }

  // `refused` is called for each call that Check does not let in. Call this once, before the first Check.
  void OnRefused(std::function<void(TokenRefusal cause)> refused) { refused_ = std::move(refused); }

  // How long to hold back the answer to a caller whom Check refused with `refused` (guess_delay.h). `client`
  // is from ClientOf.
  std::chrono::milliseconds HoldBack(const absl::Status& refused, std::string_view authorization,
                                     const std::string& client) const;

  // Whether a token of exactly this role exists.
  bool HasRole(Role role) const;

  // The name of the caller's token; empty if no token is required. UNAUTHENTICATED: no token, or an unknown
  // one. PERMISSION_DENIED: a token whose role may not do this.
  absl::StatusOr<std::string> Check(const grpc::ServerContextBase& context, Role role) const;
  absl::StatusOr<std::string> Check(const CallContext& context, Role role) const;
  // Checks a request on a connection without a guard. `authorization` is the header's value, "Bearer ...".
  absl::StatusOr<std::string> Check(std::string_view authorization, Role role) const;

 private:
  std::shared_ptr<const TokenTable> table() const;

  absl::Status Refuse(TokenRefusal cause, const absl::Status& status) const;

  std::function<void(std::string_view connection)> admitted_;
  std::function<void(TokenRefusal cause)> refused_;
  mutable GuessDelay guess_delay_;
  mutable std::mutex mutex_;
  std::shared_ptr<const TokenTable> table_;  // guarded by mutex_; null: everyone may call
};

}  // namespace foredraft
