// The page at / of the HTTP listener, as it is served. tests/e2e/page_test.py tries it in a browser.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/server/http/http_client.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TestServerOptions LoadingWithTokens() {
  TestServerOptions options;
  options.serve = false;
  options.frontend.server.http_address = "127.0.0.1:0";
  options.frontend.server.auth.tokens_file = testing::TempDir() + "/page_tokens";
  std::ofstream(options.frontend.server.auth.tokens_file, std::ios::trunc)
      << TokenLine(Role::kApi, "alice", "s3cret") << "\n";
  return options;
}

// A stranger gets the page while the model loads: it has no secret, and shows what the API says.
class ChatPageTest : public testing::Test {
 protected:
  HttpReply Ask(const std::string& method, const std::string& path) {
    return foredraft::Ask(server_.listeners().http_port(), method, path);
  }

  TestServer server_{LoadingWithTokens()};
};

// As a browser computes it of the text between the tags.
std::string Sha256Source(const std::string& text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::StrCat("'sha256-", absl::Base64Escape({reinterpret_cast<char*>(digest), size}), "'");
}

std::vector<std::string> Matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator i(text.begin(), text.end(), regex), end; i != end; ++i)
    found.push_back((*i)[1].str());
  return found;
}

TEST_F(ChatPageTest, IsTheFileWithTypeAndLength) {
  std::ifstream file("server/page/chat_page.html");
  std::ostringstream text;
  text << file.rdbuf();
  const HttpReply page = Ask("GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.body, text.str());
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.headers.at("cache-control"), "no-store");
  EXPECT_EQ(page.headers.at("content-length"), absl::StrCat(page.body.size()));
  HttpClient client(server_.listeners().http_port());
  client.Send(HttpText("HEAD", "/"));
  const HttpReply head = client.ReadHead();
  EXPECT_EQ(head.headers, page.headers);
  client.Send(HttpText("GET", "/health"));  // nothing of a body came before the next answer
  EXPECT_EQ(client.Read().body, "{\"status\":\"loading\"}");
}

TEST_F(ChatPageTest, OnlyItsOwnScriptAndStyleMayRun) {
  const HttpReply page = Ask("GET", "/");
  const std::string policy = page.headers.at("content-security-policy");
  for (const std::string tag : {"script", "style"}) {
    const size_t begin = page.body.find(absl::StrCat("<", tag, ">")) + tag.size() + 2;
    const std::string text = page.body.substr(begin, page.body.find(absl::StrCat("</", tag, ">")) - begin);
    EXPECT_THAT(policy, HasSubstr(absl::StrCat(tag, "-src ", Sha256Source(text), ";")));
    EXPECT_EQ(Matches(page.body, absl::StrCat("(<", tag, ")[ >]")).size(), 1u) << tag;
  }
  EXPECT_THAT(policy, HasSubstr("default-src 'none';"));
  EXPECT_THAT(policy, HasSubstr("connect-src 'self';"));
  EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none';"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_EQ(page.headers.at("cross-origin-opener-policy"), "same-origin");
  EXPECT_EQ(page.headers.at("referrer-policy"), "no-referrer");
  EXPECT_EQ(page.headers.at("x-content-type-options"), "nosniff");
}

// Attributes that a browser loads from, handlers and styles inside tags, which the policy refuses.
TEST_F(ChatPageTest, NamesNoOtherFile) {
  const std::string body = Ask("GET", "/").body;
  for (const std::string& target : Matches(body, "(?:src|href|action)=[\"']([^\"']*)")) {
    EXPECT_THAT(target, testing::StartsWith("data:image/svg+xml,"));
  }
  EXPECT_THAT(Matches(body, "(@import|url\\(|<iframe|<object)"), testing::IsEmpty());
  EXPECT_THAT(Matches(body, "<[a-z][^>]* (on[a-z]+|style)=[^>]*>"), testing::IsEmpty());
  for (const std::string& url : Matches(body, "(https?://[^\"'` ]+)")) {
    EXPECT_EQ(url, "http://www.w3.org/2000/svg");  // a name, which nobody fetches
  }
}

TEST_F(ChatPageTest, OtherPathsAndMethodsAreTheApis) {
  const HttpReply posted = Ask("POST", "/");
  EXPECT_EQ(posted.status, 405);
  EXPECT_EQ(posted.headers.at("allow"), "GET, HEAD");
  EXPECT_THAT(posted.body, HasSubstr("\"error\""));
  EXPECT_EQ(Ask("GET", "/index.html").status, 404);
  EXPECT_EQ(Ask("GET", "//").status, 404);
  EXPECT_EQ(Ask("GET", "/v1/models").status, 401);
  server_.Serve();
  const HttpReply models = foredraft::Ask(server_.listeners().http_port(), "GET", "/v1/models", "",
                                          {"Authorization: Bearer s3cret"});
  EXPECT_EQ(models.status, 200);
  EXPECT_THAT(models.body, HasSubstr("\"max_draft_len\":3"));  // the page's choices of K
}

}  // namespace
}  // namespace foredraft
