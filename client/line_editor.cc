#include "client/line_editor.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

constexpr int kHistoryMessages = 1000;
// What the terminal sends before and after a paste once it was asked to
// (https://invisible-island.net/xterm/ctlseqs/ctlseqs.html, "Bracketed Paste Mode").
constexpr char kPasteBegins[] = "\x1b[200~";
constexpr std::wstring_view kPasteEnds = L"\x1b[201~";
constexpr char kMarkPastes[] = "\x1b[?2004h", kDoNotMarkPastes[] = "\x1b[?2004l";

bool MarksPastes() {
  const char* terminal = getenv("TERM");
  return terminal != nullptr && *terminal != '\0' && std::string_view(terminal) != "dumb";
}

// libedit reads characters as the locale says; a locale with ASCII alone shows all others as codes.
void UseUtf8() {
  const char* locale = setlocale(LC_CTYPE, "");
  if (locale == nullptr || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
}

// What a paste inserts: terminals send line breaks as carriage returns, and other control characters would
// move the cursor.
std::wstring Insertable(std::wstring_view pasted) {
  std::wstring text;
  for (size_t i = 0; i < pasted.size(); ++i) {
    const wchar_t character = pasted[i];
    if (character == L'\n' && i > 0 && pasted[i - 1] == L'\r') continue;
    if (character == L'\r' || character == L'\n') {
      text.push_back(L'\n');
    } else if (character == L'\t' || (character >= L' ' && character != 0x7f)) {
      text.push_back(character);
    }
  }
  while (text.ends_with(L'\n')) text.pop_back();  // the message is sent by Enter alone
  return text;
}

void Write(const char* text) {
  fputs(text, stdout);
  fflush(stdout);
}

}  // namespace

LineEditor::LineEditor(const std::string& prompt)
    : prompt_(prompt), history_(history_init()), edit_(el_init("foredraft", stdin, stdout, stderr)) {
  UseUtf8();
  HistEvent event;
  history(history_, &event, H_SETSIZE, kHistoryMessages);
  history(history_, &event, H_SETUNIQUE, 1);
  el_set(edit_, EL_CLIENTDATA, this);
  el_set(edit_, EL_PROMPT, Prompt);
  el_set(edit_, EL_EDITOR, "emacs");
  el_set(edit_, EL_HIST, history, history_);
  BindKeys();
}

LineEditor::~LineEditor() {
  el_end(edit_);
  history_end(history_);
}

void LineEditor::BindKeys() {
  const auto bind = [this](const char* key, const char* command) {
    el_set(edit_, EL_BIND, key, command, nullptr);
  };
  bind("^R", "em-inc-search-prev");
  bind("\\e[3~", "ed-delete-next-char");  // Delete
  bind("\\e[1;5C", "em-next-word");       // Ctrl with the arrows
  bind("\\e[1;5D", "ed-prev-word");
  el_source(edit_, nullptr);
  // While a line is edited, Ctrl-C and Ctrl-Z are keys, and a pasted carriage return differs from a line
  // feed.
  for (const char* mode : {"-isig", "-icrnl", "-inlcr"}) el_set(edit_, EL_SETTY, "-d", mode, nullptr);
  el_set(edit_, EL_ADDFN, "foredraft-paste", "inserts what is pasted", Paste);
  el_set(edit_, EL_ADDFN, "foredraft-ctrl-c", "drops the line", CtrlC);
  el_set(edit_, EL_ADDFN, "foredraft-ctrl-z", "stops the process", CtrlZ);
  bind(kPasteBegins, "foredraft-paste");
  bind("^C", "foredraft-ctrl-c");
  bind("^Z", "foredraft-ctrl-z");
}

absl::Status LineEditor::KeepHistoryIn(const std::string& path) {
  const std::filesystem::path file(path);
  std::error_code error;
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), error);
  if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
  const bool is_new = !std::filesystem::exists(file, error);
  HistEvent event;
  if (!is_new && std::filesystem::file_size(file, error) > 0 &&
      history(history_, &event, H_LOAD, path.c_str()) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is no history of messages"));
  }
  if (history(history_, &event, H_SAVE, path.c_str()) < 0) {
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  history_file_ = path;
  return absl::OkStatus();
}

LineEditor::Event LineEditor::Read(std::string& message) {
  ctrl_c_ = was_discarded_ = false;
  const bool marks_pastes = MarksPastes();
  // Sets the editing modes before the prompt is shown. el_gets would show the prompt first, and would leave a
  // paste's line breaks and Ctrl-C that come in between to the terminal's own modes.
  el_set(edit_, EL_PREP_TERM, 1);
  if (marks_pastes) Write(kMarkPastes);
  int size = 0;
  const char* line = el_gets(edit_, &size);
  if (marks_pastes) Write(kDoNotMarkPastes);
  if (ctrl_c_) return was_discarded_ ? Event::kDiscarded : Event::kCtrlC;
  if (line == nullptr || size <= 0) return Event::kEnd;
  message.assign(line, static_cast<size_t>(size));
  if (message.ends_with('\n')) message.pop_back();
  Remember(message);
  return Event::kMessage;
}

void LineEditor::Remember(const std::string& message) {
  if (message.find_first_not_of(" \t\n") == std::string::npos) return;
  HistEvent event;
  history(history_, &event, H_ENTER, message.c_str());
  if (!history_file_.empty()) history(history_, &event, H_SAVE, history_file_.c_str());
}

char* LineEditor::Prompt(EditLine* edit) {
  LineEditor* self = nullptr;
  el_get(edit, EL_CLIENTDATA, &self);
  return self->prompt_.data();
}

unsigned char LineEditor::Paste(EditLine* edit, int) {
  std::wstring text;
  while (!std::wstring_view(text).ends_with(kPasteEnds)) {
    wchar_t character = 0;
    if (el_wgetc(edit, &character) != 1) return CC_EOF;
    text.push_back(character);
  }
  text.resize(text.size() - kPasteEnds.size());
  text = Insertable(text);
  if (!text.empty() && el_winsertstr(edit, text.c_str()) != 0) return CC_REFRESH_BEEP;
  return CC_REFRESH;
}

unsigned char LineEditor::CtrlC(EditLine* edit, int) {
  LineEditor* self = nullptr;
  el_get(edit, EL_CLIENTDATA, &self);
  const LineInfo* line = el_line(edit);
  self->ctrl_c_ = true;
  self->was_discarded_ = line->lastchar != line->buffer;
  el_cursor(edit, static_cast<int>(line->lastchar - line->cursor));
  el_set(edit, EL_REFRESH);
  Write("^C\n");
  return CC_EOF;
}

unsigned char LineEditor::CtrlZ(EditLine* edit, int) {
  Write(kDoNotMarkPastes);
  el_set(edit, EL_PREP_TERM, 0);
  kill(0, SIGTSTP);
  el_set(edit, EL_PREP_TERM, 1);
  if (MarksPastes()) Write(kMarkPastes);
  return CC_REDISPLAY;
}

std::string DefaultHistoryFile() {
  const char* state = getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return absl::StrCat(state, "/foredraft/chat_history");
  const char* home = getenv("HOME");
  if (home == nullptr || *home != '/') return "";
  return absl::StrCat(home, "/.local/state/foredraft/chat_history");
}

}  // namespace foredraft
