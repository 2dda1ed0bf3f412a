#include "server/api/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

using testing::HasSubstr;
using testing::Not;

// sha256sum of "abc" (FIPS 180-2, example 1).
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

TEST(TokenTable, FindsTokensByTheirHash) {
  EXPECT_EQ(TokenLine(Role::kApi, "alice", "abc"), absl::StrCat("api alice ", kAbc));
  const auto table = TokenTable::Parse(
      absl::StrCat("# tokens\n\n  api alice ", kAbc, "\r\n", TokenLine(Role::kAdmin, "bob", "secret"), "\n"),
      "f");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->size(), 2u);
  ASSERT_NE(table->Find("abc"), nullptr);
  EXPECT_EQ(table->Find("abc")->name, "alice");
  EXPECT_EQ(table->Find("secret")->role, Role::kAdmin);
  for (const char* unknown : {"", "ab", "abc ", "ABC", "secreT", kAbc}) {
    EXPECT_EQ(table->Find(unknown), nullptr) << unknown;
  }
}

TEST(TokenTable, RefusesALineByNumberAndNeverShowsAHash) {
  const std::string hash = kAbc;
  struct Case {
    std::string text, says;
  };
  for (const Case& test : std::vector<Case>{
           {"api alice", "f:1: allowed: role name SHA-256"},
           {"\napi alice " + hash + " more", "f:2: allowed: role name SHA-256"},
           {"root alice " + hash, "f:1: role: allowed api, admin, metrics"},
           {"api al/ice " + hash, "f:1: name: allowed up to 64 letters"},
           {"api " + std::string(65, 'a') + " " + hash, "f:1: name: allowed up to 64 letters"},
           {"api alice " + hash.substr(1), "f:1: SHA-256: allowed 64 hexadecimal digits"},
           {"api alice g" + hash.substr(1), "f:1: SHA-256: allowed 64 hexadecimal digits"},
           {"api alice " + hash + "\nadmin bob " + hash, "f:2: a token that a line above has too"},
           {"", "f: no token, allowed at least 1"},
           {"\n# only a comment\n", "f: no token, allowed at least 1"},
           {"admin bob " + hash, "f:1: no line break at its end: the file may be cut"},
           {"admin bob " + hash + "\n# a com", "f:2: no line break at its end: the file may be cut"}}) {
    const absl::Status status = TokenTable::Parse(test.text, "f").status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("server.auth.tokens_file: " + test.says));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(hash.substr(8))));
  }
  EXPECT_THAT(std::string(TokenTable::Read("/nowhere/tokens").status().message()),
              HasSubstr("server.auth.tokens_file: /nowhere/tokens: cannot be opened"));
}

TEST(Access, ARoleMayDoWhatLowerRolesMay) {
  const Access everyone;
  EXPECT_TRUE(everyone.Check("", Role::kAdmin).ok());
  Access access;
  std::string file;
  for (const Role role : {Role::kMetrics, Role::kApi, Role::kAdmin}) {
    absl::StrAppend(&file, TokenLine(role, RoleName(role), absl::StrCat("token-of-", RoleName(role))), "\n");
  }
  access.Require(*TokenTable::Parse(file, "f"));
  for (const Role has : {Role::kMetrics, Role::kApi, Role::kAdmin}) {
    for (const Role needs : {Role::kMetrics, Role::kApi, Role::kAdmin}) {
      const auto caller = access.Check(absl::StrCat("Bearer token-of-", RoleName(has)), needs);
      EXPECT_EQ(caller.ok(), has >= needs) << RoleName(has) << " " << RoleName(needs);
      EXPECT_EQ(caller.value_or("nobody"), has >= needs ? RoleName(has) : "nobody");
      EXPECT_EQ(absl::IsPermissionDenied(caller.status()), has < needs) << caller.status();
    }
  }
  for (const char* header : {"", "token-of-api", "Basic token-of-api", "Bearer", "Bearer ", "Bearer other",
                             "Bearertoken-of-api"}) {
    EXPECT_TRUE(absl::IsUnauthenticated(access.Check(header, Role::kMetrics).status())) << header;
  }
  EXPECT_TRUE(
      absl::IsUnauthenticated(access.Check("Bearer " + std::string(1 << 20, 'x'), Role::kApi).status()));
  EXPECT_TRUE(access.Check("bearer token-of-api", Role::kApi).ok());
}

}  // namespace
}  // namespace foredraft
