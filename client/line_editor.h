#pragma once

// Reads messages from the terminal with editing keys and history (libedit, which also reads ~/.editrc). What
// is pasted stays one message, line breaks included, where the terminal marks pastes (bracketed paste).
// Between two calls the terminal has its own modes, in which Ctrl-C is a signal. One object at a time, one
// thread.

#include <histedit.h>

#include <string>

#include "absl/status/status.h"

namespace foredraft {

class LineEditor {
 public:
  explicit LineEditor(const std::string& prompt);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Takes the history from the file at `path`, which is written again after each message and which only its
  // owner can read. A missing file is made. The error names the path.
  absl::Status KeepHistoryIn(const std::string& path);

  enum class Event {
    kMessage,
    kDiscarded,  // Ctrl-C dropped what was typed
    kCtrlC,      // Ctrl-C, with nothing typed
    kEnd,        // Ctrl-D, or the terminal is gone
  };
  // `message` is set for kMessage: without the line break that ended it.
  Event Read(std::string& message);

 private:
  static char* Prompt(EditLine* edit);
  static unsigned char Paste(EditLine* edit, int key);
  static unsigned char CtrlC(EditLine* edit, int key);
  static unsigned char CtrlZ(EditLine* edit, int key);

  void BindKeys();
  void Remember(const std::string& message);

  std::string prompt_;
  std::string history_file_;  // empty = none
  History* const history_;
  EditLine* const edit_;
  bool ctrl_c_ = false;         // Ctrl-C ended the last line
  bool was_discarded_ = false;  // Ctrl-C dropped what was typed
};

// $XDG_STATE_HOME/foredraft/chat_history, by default below ~/.local/state; empty without a home.
std::string DefaultHistoryFile();

}  // namespace foredraft
