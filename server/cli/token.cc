#include <fcntl.h>
#include <openssl/rand.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/api/access.h"
#include "server/cli/commands.h"

namespace foredraft {
namespace {

struct TokenOptions {
  std::string role = "api";
  std::string name;
  std::string append;  // file, empty = none
};

absl::StatusOr<std::string> MakeToken() {
  unsigned char bytes[32];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) return absl::InternalError("no random numbers");
  return absl::StrCat("fd-",
                      absl::WebSafeBase64Escape(std::string(reinterpret_cast<char*>(bytes), sizeof(bytes))));
}

absl::Status AppendLine(const std::string& file, const std::string& line) {
  const int fd = open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  const std::string text = line + "\n";
  const bool written = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  if (written) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(file, ": cannot be written: ", std::strerror(error)));
}

absl::Status Token(const TokenOptions& options) {
  const absl::StatusOr<Role> role = ParseRole(options.role);
  if (!role.ok()) return absl::InvalidArgumentError(absl::StrCat("--role: ", role.status().message()));
  ASSIGN_OR_RETURN(const std::string token, MakeToken());
  const std::string line = TokenLine(*role, options.name, token);
  // Refuses a name that the daemon would refuse.
  RETURN_IF_ERROR(TokenTable::Parse(line + "\n", "--name").status());
  if (options.append.empty()) {
    fprintf(stderr, "line for server.auth.tokens_file: %s\n", line.c_str());
  } else {
    RETURN_IF_ERROR(AppendLine(options.append, line));
  }
  printf("%s\n", token.c_str());
  return absl::OkStatus();
}

}  // namespace

void AddToken(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("token", "Make a bearer token: prints it, and its line for server.auth.tokens_file");
  auto options = std::make_shared<TokenOptions>();
  command
      ->add_option("--role", options->role,
                   "admin, api or metrics: admin may do all, metrics read /metrics alone")
      ->capture_default_str()
      ->type_name("R");
  command->add_option("--name", options->name, "whose token it is, for the log: letters, digits and ._-@")
      ->required()
      ->type_name("N");
  command->add_option("--append", options->append, "add the line to this file in place of printing it")
      ->type_name("FILE");
  command->footer("The token is printed once, and no file has it: keep it where its user finds it.");
  command->callback([options, exit_code] {
    const absl::Status status = Token(*options);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
