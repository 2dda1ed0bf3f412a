#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "client/answer_printer.h"
#include "client/client_options.h"
#include "client/commands.h"
#include "client/constraint_options.h"
#include "client/generate_report.h"
#include "client/interrupt.h"
#include "client/terminal.h"
#include "client/tool_file.h"
#include "foredraft/v1/generation.grpc.pb.h"

namespace foredraft {
namespace {

struct GenerateOptions {
  ServerAddress server;
  std::optional<std::string> prompt, chat, system;
  std::string tools;  // path of a file
  std::string reasoning_effort;
  std::vector<int32_t> token_ids;
  std::optional<int32_t> max_tokens, logprobs, max_draft_tokens;
  SamplingOptions sampling;
  ConstraintOptions constraint;
  std::optional<uint64_t> seed;
  std::optional<double> timeout_s;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool thinking = false;
  bool no_thinking = false;
  std::optional<int32_t> thinking_budget;
  bool strict_acceptance = false;
  bool json = false;
  bool show_drafts = false;
  bool answer = false;

  bool on_terminal() const { return isatty(STDOUT_FILENO) == 1; }
  // Whether the text is printed as the model wrote it: for a prompt, unless stdout is a terminal or an option
  // asks for the text's parts. The answer to a chat always has parts.
  bool raw_text() const { return !chat && !json && !show_drafts && !answer && !on_terminal(); }
};

absl::StatusOr<v1::GenerateRequest> MakeRequest(const GenerateOptions& options) {
  v1::GenerateRequest request;
  if (options.prompt) request.set_text(*options.prompt);
  if (!options.token_ids.empty()) {
    request.mutable_token_ids()->mutable_ids()->Add(options.token_ids.begin(), options.token_ids.end());
  }
  if (options.chat) {
    const auto add = [&request](const char* role, const std::string& content) {
      v1::ChatMessage* message = request.mutable_chat()->add_messages();
      message->set_role(role);
      message->set_content(content);
    };
    if (options.system) add("system", *options.system);
    add("user", *options.chat);
    if (options.thinking || options.no_thinking) request.set_thinking(options.thinking);
    request.mutable_chat()->set_reasoning_effort(options.reasoning_effort);
    if (!options.tools.empty()) RETURN_IF_ERROR(ReadToolFile(options.tools, *request.mutable_chat()));
  }
  options.sampling.ApplyTo(*request.mutable_sampling());
  RETURN_IF_ERROR(options.constraint.ApplyTo(request));
  if (options.seed) request.mutable_sampling()->set_seed(*options.seed);
  if (options.max_tokens) request.set_max_tokens(*options.max_tokens);
  if (options.strict_acceptance) request.set_strict_acceptance(true);
  if (options.thinking_budget) request.set_thinking_token_budget(*options.thinking_budget);
  for (const std::string& stop : options.stop) request.add_stop(stop);
  for (int32_t id : options.stop_token_ids) request.add_stop_token_ids(id);
  request.set_ignore_eos(options.ignore_eos);
  if (options.logprobs) request.set_logprobs(*options.logprobs);
  if (options.max_draft_tokens) request.set_max_draft_tokens(*options.max_draft_tokens);
  if (options.timeout_s) request.set_timeout_s(*options.timeout_s);
  return request;
}

// Replaces the text "-" by the content of stdin.
void ReadStdin(std::optional<std::string>& text) {
  if (text != "-") return;
  text = std::string(std::istreambuf_iterator<char>(std::cin), {});
}

// Prints the text on stdout: as it is, or divided and marked.
class TextOutput {
 public:
  explicit TextOutput(const GenerateOptions& options) : silent_(options.json) {
    if (options.raw_text()) return;
    answer_.emplace(AnswerStyle{.colour = HasColour(STDOUT_FILENO),
                                .thinking = !options.answer,
                                .drafts = options.show_drafts,
                                .apart = options.chat.has_value(),
                                .escapes = options.on_terminal()});
  }

  void Add(const v1::GenerateChunk& chunk) { Print(answer_ ? answer_->Add(chunk) : chunk.text()); }
  void End() { Print(answer_ ? answer_->End() : ""); }
  std::string Legend() const { return answer_ ? answer_->Legend() : ""; }

 private:
  void Print(const std::string& text) const {
    if (silent_ || text.empty()) return;
    fwrite(text.data(), 1, text.size(), stdout);
    fflush(stdout);
  }

  const bool silent_;
  std::optional<AnswerPrinter> answer_;
};

// Asks the daemon for the text of each token alone. A part of a character decodes to U+FFFD, a special token
// to nothing. Stops at the first call that fails: the texts are an addition to what was generated.
std::map<int32_t, std::string> TokenTexts(v1::GenerationService::Stub& stub, const std::set<int32_t>& ids) {
  constexpr std::chrono::seconds kTimeout(10);
  std::map<int32_t, std::string> texts;
  for (const int32_t id : ids) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    v1::DetokenizeRequest request;
    request.add_token_ids(id);
    v1::DetokenizeResponse response;
    if (!stub.Detokenize(&context, request, &response).ok()) break;
    texts[id] = response.text();
  }
  return texts;
}

// The daemon ends the request at its timeout. The call's deadline is for a daemon that does not answer.
void SetDeadline(double timeout_s, grpc::ClientContext& context) {
  constexpr double kGrace = 2;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::duration_cast<std::chrono::system_clock::duration>(
                           std::chrono::duration<double>(timeout_s + kGrace)));
}

absl::Status Generate(const GenerateOptions& options) {
  Interrupt interrupt;  // Ctrl-C cancels the call; what has arrived is printed
  ASSIGN_OR_RETURN(const v1::GenerateRequest request, MakeRequest(options));
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, OpenChannel(options.server));
  const auto context = std::make_shared<grpc::ClientContext>();
  interrupt.Watch(context);
  if (options.timeout_s) SetDeadline(*options.timeout_s, *context);
  const auto stub = v1::GenerationService::NewStub(channel);
  const std::unique_ptr<grpc::ClientReader<v1::GenerateChunk>> reader =
      stub->GenerateStream(context.get(), request);
  GenerateReport report;
  TextOutput text(options);
  v1::GenerateChunk chunk;
  while (reader->Read(&chunk)) {
    report.Add(chunk);
    text.Add(chunk);
  }
  text.End();
  const grpc::Status status = reader->Finish();
  report.End(status.error_code() == grpc::StatusCode::CANCELLED           ? "cancelled"
             : status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ? "deadline"
                                                                          : "");
  if (report.finish_reason().empty()) {
    if (!options.json && report.has_text()) printf("\n");
    return WithListener(CallError(options.server.address, status), options.server.address);
  }
  report.SetTokenTexts(TokenTexts(*stub, report.logprob_ids()));
  if (options.json) {
    printf("%s\n", report.Json().c_str());
  } else {
    printf("\n");
    if (options.logprobs) printf("\n%s", report.LogprobsTable().c_str());
    fflush(stdout);
    if (options.show_drafts) fprintf(stderr, "%s\n", text.Legend().c_str());
    fprintf(stderr, "%s\n", report.Summary().c_str());
  }
  if (status.ok()) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("ended early: ", report.finish_reason()));
}

// Adds the options that go only with --chat.
void AddChatOptions(CLI::App& command, CLI::Option* chat, GenerateOptions& options) {
  command.add_option("--system", options.system, "system message before --chat")->needs(chat)->type_name("T");
  CLI::Option* thinking = command.add_flag("--thinking", options.thinking,
                                           "the answer to --chat begins with thinking [the model's choice]");
  thinking->needs(chat);
  CLI::Option* no_thinking =
      command.add_flag("--no-thinking", options.no_thinking, "the answer to --chat begins without thinking");
  no_thinking->needs(chat)->excludes(thinking);
  command
      .add_option("--reasoning-effort", options.reasoning_effort,
                  "how long the answer to --chat thinks, where the model's chat template has efforts")
      ->needs(chat)
      ->excludes(no_thinking)
      ->type_name("none, low, medium, high, max");
  command.add_option("--tools", options.tools, "a JSON list of tools that the answer to --chat may call")
      ->needs(chat)
      ->type_name("FILE");
}

}  // namespace

void AddGenerate(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("generate", "Send one request; the text streams to stdout, statistics go to stderr");
  auto options = std::make_shared<GenerateOptions>();
  AddServerOptions(*command, options->server);
  CLI::Option_group* input = command->add_option_group("Input");
  input->add_option("--prompt", options->prompt, "text to continue; - reads stdin")->type_name("T");
  CLI::Option* chat =
      input->add_option("message,--chat", options->chat, "a user's message; - reads stdin")->type_name("T");
  input->add_option("--token-ids", options->token_ids, "token ids, used as they are")
      ->delimiter(',')
      ->type_name("1,2,3");
  input->require_option(1);
  AddChatOptions(*command, chat, *options);
  command->add_option("--max-tokens", options->max_tokens,
                      "tokens to generate at most [what max_seq_len leaves]");
  options->sampling.Add(*command);
  options->constraint.Add(*command);
  command->add_option("--seed", options->seed, "the same seed gives the same tokens");
  command->add_option("--stop", options->stop, "end the text before this string; repeatable")
      ->allow_extra_args(false);
  command->add_option("--stop-token-id", options->stop_token_ids, "end after this token; repeatable")
      ->allow_extra_args(false);
  command->add_flag("--ignore-eos", options->ignore_eos, "do not stop at the end-of-text token");
  command->add_option("--logprobs", options->logprobs,
                      "print each token with its logprob and this many likely ones, 0..20");
  command->add_option("--max-draft-tokens", options->max_draft_tokens,
                      "drafts per step at most, 0..7 [the daemon's choice]");
  command->add_option("--timeout", options->timeout_s, "seconds after which the daemon ends the request")
      ->type_name("S");
  command->add_option("--thinking-budget", options->thinking_budget,
                      "thinking tokens at most; then the thought is ended");
  command->add_flag("--strict-acceptance", options->strict_acceptance,
                    "no relaxed acceptance for this request");
  CLI::Option* json = command->add_flag("--json", options->json, "one JSON object on stdout instead of text");
  command->add_flag("--answer", options->answer, "the answer alone: thinking is left out")->excludes(json);
  command
      ->add_flag("--show-drafts", options->show_drafts,
                 "mark accepted drafts: green on a terminal, else [in brackets]")
      ->excludes(json);
  command->footer(
      "On a terminal thinking is dim and its tags are left out. Elsewhere, and with NO_COLOR, thinking and "
      "answer have lines and names of their own; --answer prints the answer alone. What follows a --prompt "
      "is as the model wrote it. With --tools calls have lines of their own, and with --json all parts have "
      "fields of their own.");
  command->callback([options, exit_code] {
    ReadStdin(options->prompt);
    ReadStdin(options->chat);
    const absl::Status status = Generate(*options);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
