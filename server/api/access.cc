#include "server/api/access.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/hex.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/api/grpc_context.h"

namespace foredraft {
namespace {

constexpr Role kRoles[] = {Role::kMetrics, Role::kApi, Role::kAdmin};
constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxTokenBytes = 1024;

absl::Status Refuse(const std::string& file, int line, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("server.auth.tokens_file: ", file, ":", line, ": ", std::string(what)));
}

// Names appear in log lines, so only these characters are allowed.
bool IsName(std::string_view name) {
  return name.size() <= kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(c) || std::string_view("._-@").find(c) != std::string_view::npos;
         });
}

}  // namespace

const char* RoleName(Role role) {
  switch (role) {
    case Role::kMetrics:
      return "metrics";
    case Role::kApi:
      return "api";
    case Role::kAdmin:
      break;
  }
  return "admin";
}

absl::StatusOr<Role> ParseRole(std::string_view text) {
  for (const Role role : kRoles) {
    if (text == RoleName(role)) return role;
  }
  return absl::InvalidArgumentError(absl::StrCat(std::string(text), ", allowed api, admin, metrics"));
}

TokenHash HashToken(std::string_view token) {
  TokenHash hash;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hash;
}

std::string HexOf(const TokenHash& hash) {
  return absl::BytesToHexString(std::string(hash.begin(), hash.end()));
}

std::string TokenLine(Role role, std::string_view name, std::string_view token) {
  return absl::StrCat(RoleName(role), " ", std::string(name), " ", HexOf(HashToken(token)));
}

absl::StatusOr<TokenTable> TokenTable::Parse(std::string_view text, const std::string& file) {
  TokenTable table;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || line.front() == '#') continue;
    const std::vector<std::string> parts = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (parts.size() != 3) return Refuse(file, number, "allowed: role name SHA-256");
    const absl::StatusOr<Role> role = ParseRole(parts[0]);
    if (!role.ok()) return Refuse(file, number, "role: allowed api, admin, metrics");  // it may be a token
    if (!IsName(parts[1])) {
      return Refuse(file, number, "name: allowed up to 64 letters, digits and ._-@");
    }
    Entry entry = {.role = *role, .name = parts[1], .hash = {}};
    if (!ReadHex(parts[2], entry.hash)) {
      return Refuse(file, number, "SHA-256: allowed 64 hexadecimal digits (foredraft token makes them)");
    }
    for (const Entry& other : table.entries_) {
      if (other.hash == entry.hash) return Refuse(file, number, "a token that a line above has too");
    }
    table.entries_.push_back(std::move(entry));
  }
  if (table.entries_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "server.auth.tokens_file: ", file, ": no token, allowed at least 1 (foredraft token makes them)"));
  }
  if (text.back() != '\n') return Refuse(file, number, "no line break at its end: the file may be cut");
  return table;
}

absl::StatusOr<TokenTable> TokenTable::Read(const std::string& file) {
  const absl::StatusOr<std::string> text = ReadFileText(file, kMaxFileBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("server.auth.tokens_file: ", text.status().message()));
  }
  return Parse(*text, file);
}

const TokenTable::Entry* TokenTable::Find(std::string_view token) const {
  const TokenHash hash = HashToken(token);
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.hash.data(), hash.data(), hash.size()) == 0) found = &entry;
  }
  return found;
}

bool TokenTable::HasRole(Role role) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [role](const Entry& entry) { return entry.role == role; });
}

bool Access::HasRole(Role role) const {
  const std::shared_ptr<const TokenTable> table = this->table();
  return table != nullptr && table->HasRole(role);
}

void Access::Require(TokenTable table) {
  auto next = std::make_shared<const TokenTable>(std::move(table));
  std::lock_guard<std::mutex> lock(mutex_);
  table_ = std::move(next);
}

std::shared_ptr<const TokenTable> Access::table() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return table_;
}

absl::StatusOr<std::string> Access::Check(const grpc::ServerContextBase& context, Role role) const {
  absl::StatusOr<std::string> caller = std::string();
  if (table() != nullptr) caller = Check(GrpcContext::AuthorizationOf(context), role);
  if (caller.ok() && admitted_) admitted_(context.peer());
  return caller;
}

absl::StatusOr<std::string> Access::Check(const CallContext& context, Role role) const {
  absl::StatusOr<std::string> caller = Check(context.authorization(), role);
  if (caller.ok() && admitted_) admitted_(context.connection());
  return caller;
}

absl::StatusOr<std::string> Access::Check(std::string_view authorization, Role role) const {
  const std::shared_ptr<const TokenTable> table = this->table();
  if (table == nullptr) return std::string();
  constexpr std::string_view kScheme = "Bearer ";
  if (authorization.empty()) {
    return Refuse(TokenRefusal::kMissing,
                  absl::UnauthenticatedError("no token: send \"authorization: Bearer TOKEN\""));
  }
  if (authorization.size() > kMaxTokenBytes ||
      !absl::StartsWithIgnoreCase(absl::string_view(authorization.data(), authorization.size()),
                                  absl::string_view(kScheme.data(), kScheme.size()))) {
    return Refuse(TokenRefusal::kMalformed,
                  absl::UnauthenticatedError("authorization: not \"Bearer TOKEN\""));
  }
  const TokenTable::Entry* entry = table->Find(authorization.substr(kScheme.size()));
  if (entry == nullptr) {
    return Refuse(TokenRefusal::kUnknown, absl::UnauthenticatedError("the token is not known here"));
  }
  if (entry->role < role) {
    return Refuse(TokenRefusal::kRole, absl::PermissionDeniedError(absl::StrCat(
                                           "the token ", entry->name, " has the role ", RoleName(entry->role),
                                           ", this needs ", RoleName(role))));
  }
  return entry->name;
}

std::chrono::milliseconds Access::HoldBack(const absl::Status& refused, std::string_view authorization,
                                           const std::string& client) const {
  if (!absl::IsUnauthenticated(refused) || authorization.empty()) return std::chrono::milliseconds(0);
  return guess_delay_.Note(client, std::chrono::steady_clock::now());
}

absl::Status Access::Refuse(TokenRefusal cause, const absl::Status& status) const {
  if (refused_) refused_(cause);
  return status;
}

}  // namespace foredraft
