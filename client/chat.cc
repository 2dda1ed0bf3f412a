#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/visible_text.h"
#include "client/answer_printer.h"
#include "client/client_options.h"
#include "client/commands.h"
#include "client/constraint_options.h"
#include "client/generate_report.h"
#include "client/interrupt.h"
#include "client/line_editor.h"
#include "client/line_wrap.h"
#include "client/terminal.h"
#include "foredraft/v1/generation.grpc.pb.h"

namespace foredraft {
namespace {

constexpr char kHelp[] =
    "/reset  forget the conversation     /system TEXT  set the system message\n"
    "/stats  of the last answer          /exit         or Ctrl-D, or Ctrl-C twice\n"
    "Ctrl-C ends an answer, which stays in the conversation, and drops what is typed. The arrows, Ctrl-A, "
    "Ctrl-E,\n"
    "Ctrl-W and Ctrl-R edit and find earlier messages. What is pasted is one message, line breaks "
    "included.\n";
constexpr char kCtrlC[] =
    "Ctrl-C once more, Ctrl-D or /exit leaves; during an answer Ctrl-C ends the answer\n";
constexpr char kNoHistory[] = "none";

struct ChatOptions {
  ServerAddress server;
  std::optional<std::string> system;
  std::optional<int32_t> max_tokens;
  SamplingOptions sampling;
  ConstraintOptions constraint;  // of every answer
  std::optional<uint64_t> seed;
  std::optional<std::string> history;  // a file, or kNoHistory
  bool no_wrap = false;
};

// A conversation on the terminal. If stdout is not a terminal, only answers are printed, without thinking.
class Conversation {
 public:
  Conversation(const ChatOptions& options, std::unique_ptr<v1::GenerationService::Stub> stub,
               Interrupt& interrupt)
      : options_(options),
        stub_(std::move(stub)),
        interrupt_(interrupt),
        system_(options.system.value_or("")) {}

  absl::Status Run() {
    ASSIGN_OR_RETURN(const std::string model, ModelName());
    if (terminal_) {
      printf("%s at %s; /help lists commands\n", VisibleText(model).c_str(), options_.server.address.c_str());
    }
    RETURN_IF_ERROR(OpenEditor());
    std::string message;
    while (NextMessage(message)) {
      absl::StripAsciiWhitespace(&message);
      if (message.empty()) continue;
      if (message == "/exit" || message == "/quit" || message == "/bye") break;
      if (message[0] == '/' && message.find('\n') == std::string::npos) {
        Command(message);
        continue;
      }
      const absl::Status status = Answer(message);
      if (!status.ok() && !terminal_) return status;
      if (!status.ok()) Fail(status);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status OpenEditor() {
    if (!terminal_) return absl::OkStatus();
    editor_.emplace("> ");
    if (options_.history == kNoHistory) return absl::OkStatus();
    if (options_.history.has_value()) {
      const absl::Status kept = editor_->KeepHistoryIn(*options_.history);
      return absl::Status(kept.code(), kept.ok() ? "" : absl::StrCat("--history: ", kept.message()));
    }
    // Without a home, or with one that cannot be written, only this conversation is remembered.
    if (const std::string file = DefaultHistoryFile(); !file.empty()) {
      editor_->KeepHistoryIn(file).IgnoreError();
    }
    return absl::OkStatus();
  }

  // False: the conversation ends.
  bool NextMessage(std::string& message) {
    fflush(stdout);
    if (!editor_.has_value()) return static_cast<bool>(std::getline(std::cin, message));
    for (bool is_second = false;;) {
      switch (editor_->Read(message)) {
        case LineEditor::Event::kMessage:
          return true;
        case LineEditor::Event::kEnd:
          Print("\n");
          return false;
        case LineEditor::Event::kCtrlC:
          if (is_second) return false;
          is_second = true;
          Print(kCtrlC);
          break;
        case LineEditor::Event::kDiscarded:
          is_second = false;
          break;
      }
    }
  }

  absl::StatusOr<std::string> ModelName() {
    const auto context = std::make_shared<grpc::ClientContext>();
    interrupt_.Watch(context);
    v1::GetModelResponse model;
    const grpc::Status status = stub_->GetModel(context.get(), {}, &model);
    interrupt_.Watch(nullptr);
    if (!status.ok()) {
      return WithListener(CallError(options_.server.address, status), options_.server.address);
    }
    return model.name();
  }

  void Command(const std::string& text) {
    if (text == "/reset") {
      turns_.clear();
    } else if (text == "/stats") {
      printf("%s\n", report_.has_value() ? report_->Summary().c_str() : "no answer yet");
    } else if (text == "/help") {
      fputs(kHelp, stdout);
    } else if (text == "/system" || text.starts_with("/system ")) {
      system_ = text.substr(std::string_view("/system").size());
      absl::StripAsciiWhitespace(&system_);
    } else {
      printf("%s: unknown command\n%s", text.c_str(), kHelp);
    }
  }

  absl::StatusOr<v1::GenerateRequest> Request() const {
    v1::GenerateRequest request;
    const auto add = [&request](const char* role, const std::string& content) {
      v1::ChatMessage* message = request.mutable_chat()->add_messages();
      message->set_role(role);
      message->set_content(content);
    };
    if (!system_.empty()) add("system", system_);
    for (size_t i = 0; i < turns_.size(); ++i) add(i % 2 == 0 ? "user" : "assistant", turns_[i]);
    options_.sampling.ApplyTo(*request.mutable_sampling());
    RETURN_IF_ERROR(options_.constraint.ApplyTo(request));
    if (options_.seed) request.mutable_sampling()->set_seed(*options_.seed);
    if (options_.max_tokens) request.set_max_tokens(*options_.max_tokens);
    return request;
  }

  // Streams the answer to `question`. An answer that Ctrl-C cut short stays in the conversation; a question
  // that failed does not.
  absl::Status Answer(std::string question) {
    turns_.push_back(std::move(question));
    const absl::StatusOr<v1::GenerateRequest> request = Request();
    if (!request.ok()) {
      turns_.pop_back();
      return request.status();
    }
    const auto context = std::make_shared<grpc::ClientContext>();
    interrupt_.Watch(context);
    const auto reader = stub_->GenerateStream(context.get(), *request);
    report_.emplace();
    std::string answer;
    LineWrap wrap;
    const auto shown = [&](std::string piece) {
      return wraps_ ? wrap.Add(piece, TerminalColumns(STDOUT_FILENO)) : std::move(piece);
    };
    AnswerPrinter text(
        {.colour = colour_, .thinking = terminal_, .apart = true, .escapes = isatty(STDOUT_FILENO) == 1});
    v1::GenerateChunk chunk;
    while (reader->Read(&chunk)) {
      report_->Add(chunk);
      answer += chunk.text();
      Print(shown(text.Add(chunk)));
    }
    Print(shown(text.End()) + "\n");
    const grpc::Status status = reader->Finish();
    interrupt_.Watch(nullptr);
    const bool cancelled = status.error_code() == grpc::StatusCode::CANCELLED;
    report_->End(cancelled ? "cancelled" : "");
    if (!status.ok() && !cancelled) {
      turns_.pop_back();
      return CallError(options_.server.address, status);
    }
    if (cancelled && terminal_) Print("(ended by Ctrl-C; what there is of it stays in the conversation)\n");
    turns_.push_back(answer.empty() ? " " : answer);
    return absl::OkStatus();
  }

  static void Print(const std::string& text) {
    fwrite(text.data(), 1, text.size(), stdout);
    fflush(stdout);
  }

  const ChatOptions options_;
  const std::unique_ptr<v1::GenerationService::Stub> stub_;
  const bool terminal_ = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  const bool colour_ = terminal_ && HasColour(STDOUT_FILENO);
  const bool wraps_ = terminal_ && !options_.no_wrap && KnowsEscapes(STDOUT_FILENO);
  Interrupt& interrupt_;
  std::optional<LineEditor> editor_;  // on a terminal
  std::string system_;
  std::vector<std::string> turns_;  // user, assistant, user, ...
  std::optional<GenerateReport> report_;
};

absl::Status Chat(const ChatOptions& options) {
  termios modes{};
  const bool has_modes = tcgetattr(STDIN_FILENO, &modes) == 0;
  // At the prompt Ctrl-C is a key, so a signal comes from elsewhere.
  Interrupt interrupt([has_modes, modes] {
    if (has_modes) tcsetattr(STDIN_FILENO, TCSADRAIN, &modes);
    fputs("\n", stdout);
    fflush(stdout);
    _exit(0);
  });
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, OpenChannel(options.server));
  return Conversation(options, v1::GenerationService::NewStub(channel), interrupt).Run();
}

}  // namespace

void AddChat(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "chat",
      "Hold a conversation with a daemon's model; where stdin is not a terminal, each line is a message");
  auto options = std::make_shared<ChatOptions>();
  AddServerOptions(*command, options->server);
  command->add_option("--system", options->system, "system message")->type_name("T");
  command->add_option("--max-tokens", options->max_tokens,
                      "tokens of an answer at most [what max_seq_len leaves]");
  options->sampling.Add(*command);
  options->constraint.Add(*command);
  command->add_option("--seed", options->seed, "the same seed gives the same answers");
  command
      ->add_option("--history", options->history,
                   "file with earlier messages, for the arrow keys; none keeps none "
                   "[~/.local/state/foredraft/chat_history]")
      ->type_name("FILE");
  command->add_flag("--no-wrap", options->no_wrap,
                    "leave it to the terminal where lines break; otherwise they break between words");
  command->callback([options, exit_code] {
    const absl::Status status = Chat(*options);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace foredraft
