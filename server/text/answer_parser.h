#pragma once

// Divides a chat answer into thinking, text and calls of tools, while it arrives. The whole of its output
// does not depend on how the answer is cut into pieces.
//
// A call is announced once its header is complete and names a tool of the request; its arguments follow as
// they come. Whatever begins like a call and is none is text, and so is everything after it: no output is an
// error. White space in front of the first call is no text. A call that has been announced stays one: if the
// answer ends within it, or goes on otherwise than the format says, its arguments end there (`complete` stays
// false).

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/argument_types.h"
#include "server/text/call_syntax.h"
#include "server/text/chat_message.h"

namespace foredraft {

// What a piece of an answer adds to one call.
struct CallDelta {
  int index = 0;          // of the call in the answer
  std::string id;         // with the first delta of a call, as is the name
  std::string name;       // never empty there
  std::string arguments;  // JSON text
  bool complete = false;  // the call is over, and its format was kept

  bool is_first() const { return !name.empty(); }
};

// Appends deltas that follow those of `calls`.
void AppendCalls(std::vector<CallDelta>& calls, std::vector<CallDelta> next);

// A stretch of an answer that belongs to one part. Runs are in the order in which the model wrote them.
struct AnswerRun {
  enum class Part { kThinking, kText, kCall };
  Part part;
  int call = 0;      // of kCall: its index
  size_t bytes = 0;  // of thinking, text or arguments; of kCall, 0 where it is only announced

  bool operator==(const AnswerRun&) const = default;
};

// Appends a run, or makes the last run longer if that is of the same part.
void AppendRun(std::vector<AnswerRun>& runs, const AnswerRun& next);

struct AnswerDelta {
  std::string thinking;
  std::string text;
  std::vector<CallDelta> calls;  // ascending by index, one per call
  std::vector<AnswerRun> runs;   // the order of all of them
};

struct AnswerOptions {
  const AnswerSyntax* syntax = nullptr;  // outlives the parser
  bool begins_in_thinking = false;
  std::vector<ChatTool> tools;  // empty: nothing is a call
  bool parallel_calls = true;
  // Up to so many line ends directly after a thought are in no part of the answer (AnswerSplitter).
  int line_ends_behind_thought = 0;
  std::string id_prefix;  // call i has the id "<id_prefix>_<i>" where the format has no ids
};

// Owner: one answer; not thread-safe.
class AnswerParser {
 public:
  explicit AnswerParser(AnswerOptions options);

  // Takes marked text (call_syntax.h), not cut within a mark.
  void Feed(std::string_view marked, AnswerDelta& delta);
  // Reads the rest, after the last Feed.
  void End(AnswerDelta& delta);

  int complete_calls() const { return complete_calls_; }
  // Calls that were announced and are not complete: at most the last one.
  int incomplete_calls() const { return call_count_ - complete_calls_; }
  // Whether something began like a call and was none.
  bool has_broken_call() const { return has_broken_call_; }
  // Whether the answer is over after its first call, because calls are not parallel.
  bool is_over() const { return !options_.parallel_calls && complete_calls_ > 0; }

 private:
  enum class State {
    kText,
    kThinking,
    kSection,  // before a call of a section, or before its end
    kName,
    kJson,       // the arguments, as they are
    kArguments,  // before an argument, or before the end of the call
    kKey,
    kBeforeValue,  // kTagged: between key and value
    kStringValue,
    kJsonValue,
    kPlain,  // after something that was no call: all is text
  };
  enum class Match { kYes, kNo, kMore };  // kMore: a beginning of the literal is all that has come

  // One step with what is pending; false: more has to come. `delta_` is where it writes.
  bool Step();
  bool ReadText();
  bool ReadThinking();
  bool ReadCallInThought(size_t call);
  bool ReadSection();
  bool ReadName();
  bool ReadJson();
  bool ReadArgument();
  bool ReadKey();
  bool ReadValueBegin();
  struct ValueEnd {
    size_t at;    // npos: it has not come
    size_t size;  // of the mark
  };
  ValueEnd FindValueEnd(size_t from) const;
  bool ReadString();
  bool ReadJsonValue();

  Match At(const std::string& literal) const;
  // Moves bytes of pending_ to the end of held_.
  void Hold(size_t bytes);
  void HoldWhiteSpace();
  void Drop(size_t bytes) { pending_.erase(0, bytes); }
  // Everything since the last announced call is text.
  bool GiveUp();
  // The announced call ends here without being complete; what is left is text.
  bool BreakCall();
  void EmitThinking(std::string_view marked);
  void EmitText(std::string_view marked);
  void EmitArguments(std::string_view json);
  // Emits the first `end` bytes of pending_ as JSON arguments, except white space at their end and, where the
  // format has fences, backticks: these stay in pending_, or are dropped if `is_last`.
  void EmitJson(size_t end, bool is_last);
  void Announce(std::string id, const ChatTool& tool);
  void CompleteCall();
  void BeginArgument();
  const ChatTool* FindTool(std::string_view name) const;

  const AnswerOptions options_;
  const CallSyntax& calls_;
  const std::string begin_thinking_, end_thinking_;
  const std::string trigger_;  // what begins a section
  AnswerDelta* delta_ = nullptr;
  State state_;
  std::string pending_;  // marked text that is not read yet
  std::string held_;     // what was read since the section began, while nothing is announced
  std::string blanks_;   // white space after calls: text if text follows
  bool behind_calls_ = false;
  bool has_text_ = false;
  int call_count_ = 0;
  int complete_calls_ = 0;
  bool has_broken_call_ = false;

  // The call that is being read.
  ArgumentTypes arguments_;     // of its tool
  ArgumentType value_type_;     // kTagged: of the argument
  bool has_arguments_ = false;  // some were written
  std::vector<std::string> keys_;
  bool is_string_ = false;  // the argument
  bool is_bare_ = false;    // kTagged: the value has no mark in front
  size_t searched_ = 0;     // bytes of pending_ in which the end of a JSON value does not begin
};

}  // namespace foredraft
