// Typing in `foredraft chat`: editing keys, history, pasted blocks, Ctrl-C, Ctrl-Z.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/e2e/daemon_fixture.h"
#include "tests/e2e/on_terminal.h"

namespace foredraft {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr char kUp[] = "\x1b[A", kLeft[] = "\x1b[D", kCtrlA[] = "\x01", kCtrlC[] = "\x03", kCtrlD[] = "\x04";
constexpr char kPrompt[] = "\x1b[?2004h> ";  // with which the terminal is asked to mark pastes
constexpr char kExplained[] = "Ctrl-C once more, Ctrl-D or /exit leaves";

// Each test has a home of its own.
class ChatEditing : public testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = new Daemon; }
  static void TearDownTestSuite() {
    delete daemon_;
    daemon_ = nullptr;
  }

  std::vector<std::string> Arguments(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"chat", "--server", daemon_->grpc_address(), "--temperature", "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::vector<std::string> Environment() const { return {"HOME=" + home_, "XDG_STATE_HOME="}; }
  std::string HistoryFile() const { return home_ + "/.local/state/foredraft/chat_history"; }

  static void AwaitPrompt(OnTerminal& chat) {
    chat.WaitFor(kPrompt);
    chat.Forget();
  }
  // What is shown until the next prompt, which is its end.
  static std::string Ask(OnTerminal& chat, const std::string& keys) {
    chat.Type(keys);
    std::string shown = chat.WaitFor(kPrompt);
    chat.Forget();
    return shown;
  }

  static inline Daemon* daemon_ = nullptr;
  const std::string home_ = TestDir("home");
};

TEST_F(ChatEditing, KeysEditTheLine) {
  OnTerminal chat(Arguments(), Environment());
  AwaitPrompt(chat);
  // "is 8 week in days?", an s between its k and the space, and "What " in front.
  const std::string typed = std::string("is 8 week in days?") + kLeft + kLeft + kLeft + kLeft + kLeft +
                            kLeft + kLeft + kLeft + kLeft + "s" + kCtrlA + "What \r";
  EXPECT_THAT(Ask(chat, typed), HasSubstr("The answer is 56"));
  chat.Type(kCtrlD);
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_TRUE(chat.HasFirstModes());
}

TEST_F(ChatEditing, EarlierMessagesComeBackInTheNextConversationToo) {
  {
    OnTerminal chat(Arguments(), Environment());
    AwaitPrompt(chat);
    EXPECT_THAT(Ask(chat, "What is 8 weeks in days?\r"), HasSubstr("The answer is 56"));
    EXPECT_THAT(Ask(chat, std::string("/reset\r")), Not(HasSubstr("unknown")));
    EXPECT_THAT(Ask(chat, std::string(kUp) + kUp + "\r"), HasSubstr("The answer is 56"));
    chat.Signal(SIGKILL);  // no time for anything at the end
  }
  struct stat status {};
  ASSERT_EQ(stat(HistoryFile().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  OnTerminal chat(Arguments(), Environment());
  AwaitPrompt(chat);
  EXPECT_THAT(Ask(chat, std::string(kUp) + "\r"), HasSubstr("The answer is 56"));
}

TEST_F(ChatEditing, AFileOfAnotherKindIsNotOverwritten) {
  WriteText(home_ + "/notes", "my notes\n");
  OnTerminal chat(Arguments({"--history", home_ + "/notes"}), Environment());
  EXPECT_EQ(chat.Wait(), 1);
  EXPECT_THAT(chat.shown(), HasSubstr("--history: " + home_ + "/notes: is no history of messages"));
  std::ostringstream text;
  text << std::ifstream(home_ + "/notes").rdbuf();
  EXPECT_EQ(text.str(), "my notes\n");
  OnTerminal none(Arguments({"--history", "none"}), Environment());
  AwaitPrompt(none);
  Ask(none, "What is 8 weeks in days?\r");
  EXPECT_FALSE(std::filesystem::exists(HistoryFile()));
}

// Three lines of a program once were three questions. The characters behind ESC would move the cursor.
TEST_F(ChatEditing, APastedBlockIsOneMessage) {
  OnTerminal chat(Arguments({"--max-tokens", "40"}), Environment());
  AwaitPrompt(chat);
  const std::string pasted = "\x1b[200~What is\r8 weeks\r\nin days\x1b[2J?\n\x1b[201~";
  chat.Type(pasted);
  chat.WaitFor("in days");
  poll(nullptr, 0, 200);
  EXPECT_EQ(daemon_->Metric("requests_running"), 0);
  chat.Forget();
  EXPECT_THAT(Ask(chat, "\r"), AllOf(Not(HasSubstr(std::string(kPrompt) + "8 weeks")), EndsWith(kPrompt)));
  std::ostringstream history;
  history << std::ifstream(HistoryFile()).rdbuf();
  EXPECT_THAT(history.str(), HasSubstr("What\\040is\\0128\\040weeks\\012in\\040days[2J?\n"));
  EXPECT_THAT(Ask(chat, "\x1b[200~/exit\x1b[201~ no\r"), HasSubstr("/exit no: unknown command"));
  EXPECT_THAT(Ask(chat, "\x1b[200~/exit\rno\x1b[201~\r"), Not(HasSubstr("unknown command")));
}

TEST_F(ChatEditing, CtrlCSaysWhatItDoesAndLeavesTheSecondTime) {
  OnTerminal chat(Arguments(), Environment());
  AwaitPrompt(chat);
  EXPECT_THAT(Ask(chat, std::string("half a que") + kCtrlC), Not(HasSubstr(kExplained)));
  EXPECT_THAT(Ask(chat, kCtrlC), HasSubstr(kExplained));
  EXPECT_THAT(Ask(chat, "What is 8 weeks in days?\r"), HasSubstr("The answer is 56"));
  EXPECT_THAT(Ask(chat, kCtrlC), HasSubstr(kExplained));  // the first one again
  chat.Type(kCtrlC);
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_TRUE(chat.HasFirstModes());
}

TEST_F(ChatEditing, CtrlCEndsAnAnswerAndSaysSo) {
  OnTerminal chat(Arguments(), Environment());
  AwaitPrompt(chat);
  daemon_->process().Signal(SIGSTOP);  // an answer that takes its time
  chat.Type("What is 8 weeks in days?\r");
  chat.WaitFor("\x1b[?2004l");
  poll(nullptr, 0, 300);
  chat.Type(kCtrlC);
  chat.WaitFor("(ended by Ctrl-C; what there is of it stays in the conversation)");
  daemon_->process().Signal(SIGCONT);
  AwaitPrompt(chat);
  EXPECT_THAT(Ask(chat, "/reset\r"), Not(HasSubstr("ended")));
  EXPECT_THAT(Ask(chat, "What is 8 weeks in days?\r"),
              AllOf(HasSubstr("The answer is 56"), Not(HasSubstr("ended by"))));
}

TEST_F(ChatEditing, ASignalAtThePromptLeavesTheTerminalAsItWas) {
  OnTerminal chat(Arguments(), Environment());
  AwaitPrompt(chat);
  EXPECT_FALSE(chat.HasFirstModes());
  chat.Signal(SIGTERM);
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_TRUE(chat.HasFirstModes());
}

}  // namespace
}  // namespace foredraft
