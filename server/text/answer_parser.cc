#include "server/text/answer_parser.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/text/tool_json.h"

namespace foredraft {
namespace {

constexpr char kWhiteSpace[] = " \n\r\t";
constexpr size_t kMostNameBytes = 256, kMostKeyBytes = 1024;
constexpr size_t kMostFenceBytes = 256;  // of white space and backticks after arguments

// The offset of the longest suffix of `text` that is a proper prefix of `literal`; the text's size if there
// is none.
size_t BeginningAtEnd(std::string_view text, std::string_view literal) {
  for (size_t length = std::min(text.size(), literal.size() - 1); length > 0; --length) {
    if (text.ends_with(literal.substr(0, length))) return text.size() - length;
  }
  return text.size();
}

std::string_view Stripped(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

// NAME of "functions.NAME:INDEX", whose first and last part models leave out at times.
std::string_view NameOfId(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  if (id.starts_with(kPrefix)) id.remove_prefix(kPrefix.size());
  const size_t colon = id.rfind(':');
  if (colon == std::string_view::npos) return id;
  const std::string_view index = id.substr(colon + 1);
  return index.find_first_not_of("0123456789") == std::string_view::npos ? id.substr(0, colon) : id;
}

}  // namespace

void AppendCalls(std::vector<CallDelta>& calls, std::vector<CallDelta> next) {
  for (CallDelta& call : next) {
    if (calls.empty() || calls.back().index != call.index) {
      calls.push_back(std::move(call));
    } else {
      calls.back().arguments.append(call.arguments);
      calls.back().complete |= call.complete;
    }
  }
}

void AppendRun(std::vector<AnswerRun>& runs, const AnswerRun& next) {
  if (!runs.empty() && runs.back().part == next.part && runs.back().call == next.call) {
    runs.back().bytes += next.bytes;
  } else {
    runs.push_back(next);
  }
}

AnswerParser::AnswerParser(AnswerOptions options)
    : options_(std::move(options)),
      calls_(options_.syntax->calls()),
      begin_thinking_(MarkText(kBeginThinkingMark)),
      end_thinking_(MarkText(kEndThinkingMark)),
      trigger_(calls_.begin.empty() ? calls_.call : calls_.begin),
      state_(options_.begins_in_thinking ? State::kThinking : State::kText) {}

void AnswerParser::Feed(std::string_view marked, AnswerDelta& delta) {
  delta_ = &delta;
  pending_.append(marked);
  while (Step()) {
  }
  delta_ = nullptr;
}

void AnswerParser::End(AnswerDelta& delta) {
  Feed("", delta);
  delta_ = &delta;
  switch (state_) {
    case State::kSection:
      // The calls of a section count even if its end is missing.
      if (call_count_ == 0 || !Stripped(pending_).empty()) GiveUp();
      break;
    case State::kName:
      GiveUp();
      break;
    case State::kJson:
      EmitJson(pending_.size(), /*is_last=*/true);
      break;
    case State::kStringValue:
      EmitArguments(options_.syntax->Unmarked(std::exchange(pending_, ""), /*as_shown=*/false));
      break;
    case State::kText:
    case State::kPlain:
      EmitText(std::exchange(pending_, ""));
      break;
    case State::kThinking:  // what could have become a call
      EmitThinking(std::exchange(pending_, ""));
      break;
    case State::kArguments:
    case State::kKey:
    case State::kBeforeValue:
    case State::kJsonValue:
      break;
  }
  delta_ = nullptr;
}

bool AnswerParser::Step() {
  if (is_over()) {
    pending_.clear();
    return false;
  }
  switch (state_) {
    case State::kText:
      return ReadText();
    case State::kThinking:
      return ReadThinking();
    case State::kSection:
      return ReadSection();
    case State::kName:
      return ReadName();
    case State::kJson:
      return ReadJson();
    case State::kArguments:
      return ReadArgument();
    case State::kKey:
      return ReadKey();
    case State::kBeforeValue:
      return ReadValueBegin();
    case State::kStringValue:
      return ReadString();
    case State::kJsonValue:
      return ReadJsonValue();
    case State::kPlain:
      EmitText(std::exchange(pending_, ""));
      return false;
  }
  return false;
}

bool AnswerParser::ReadText() {
  const bool calls = !options_.tools.empty();
  const size_t think = pending_.find(begin_thinking_);
  const size_t call = calls ? pending_.find(trigger_) : std::string::npos;
  const size_t end_think = pending_.find(end_thinking_);
  const size_t mark = std::min(think, end_think);
  if (mark < call) {
    EmitText(pending_.substr(0, mark));
    Drop(mark + begin_thinking_.size());
    if (mark == think) state_ = State::kThinking;
    return true;
  }
  // Up to two line breaks before a section may belong to it.
  size_t safe = call != std::string::npos ? call
                : calls                   ? BeginningAtEnd(pending_, trigger_)
                                          : pending_.size();
  for (int i = 0; calls && calls_.own_lines && i < 2 && safe > 0 && pending_[safe - 1] == '\n'; ++i) --safe;
  // White space next to calls is no answer: at the beginning it waits for what follows.
  if (calls && !has_text_ && call_count_ == 0 && pending_.find_first_not_of(kWhiteSpace) >= safe) safe = 0;
  EmitText(pending_.substr(0, safe));
  Drop(safe);
  if (call == std::string::npos) return false;
  Hold(call - safe + trigger_.size());
  state_ = calls_.begin.empty() ? State::kName : State::kSection;
  return true;
}

bool AnswerParser::ReadThinking() {
  const size_t begin = pending_.find(begin_thinking_), end = pending_.find(end_thinking_);
  const size_t mark = std::min(begin, end);
  const bool calls = calls_.ends_thought && !options_.tools.empty();
  const size_t call = calls ? pending_.find(trigger_) : std::string::npos;
  if (call < mark) return ReadCallInThought(call);
  size_t safe = mark;
  if (mark == std::string::npos) safe = calls ? BeginningAtEnd(pending_, trigger_) : pending_.size();
  EmitThinking(pending_.substr(0, safe));
  Drop(safe);
  if (mark == std::string::npos) return false;
  Drop(end_thinking_.size());
  if (mark == end) state_ = State::kText;
  return true;
}

// Some models begin a call without having ended their thought. A section of calls then ends it. In formats
// without sections, a header that names a tool ends it; anything else that begins like a header is thinking.
bool AnswerParser::ReadCallInThought(size_t call) {
  if (!calls_.begin.empty()) {
    EmitThinking(pending_.substr(0, call));
    Drop(call);
    state_ = State::kText;
    return true;
  }
  const size_t name = call + calls_.call.size();
  const size_t name_end = std::min(pending_.find(calls_.key, name), pending_.find(calls_.call_end, name));
  const bool is_over = name_end != std::string::npos || pending_.size() - name > 2 * kMostNameBytes;
  const bool names_tool =
      name_end != std::string::npos &&
      FindTool(Stripped(std::string_view(pending_).substr(name, name_end - name))) != nullptr;
  const size_t thought_end = is_over && !names_tool ? name : call;
  EmitThinking(pending_.substr(0, thought_end));
  Drop(thought_end);
  if (names_tool) state_ = State::kText;
  return is_over;
}

bool AnswerParser::ReadSection() {
  HoldWhiteSpace();
  const Match call = At(calls_.call), end = At(calls_.end);
  if (call == Match::kYes) {
    Hold(calls_.call.size());
    state_ = State::kName;
    return true;
  }
  if (end == Match::kYes && call_count_ > 0) {
    Drop(calls_.end.size());
    held_.clear();
    state_ = State::kText;
    behind_calls_ = true;
    return true;
  }
  return call == Match::kMore || end == Match::kMore ? false : GiveUp();
}

bool AnswerParser::ReadName() {
  size_t end = std::string::npos, consumed = 0;
  if (calls_.arguments == CallSyntax::Arguments::kTagged) {
    end = std::min(pending_.find(calls_.key), pending_.find(calls_.call_end));
  } else {
    end = pending_.find(calls_.name_end);
    consumed = calls_.name_end.size();
  }
  if (end == std::string::npos) {
    // A literal that begins within the bound is shorter than the bound.
    return pending_.size() > 2 * kMostNameBytes ? GiveUp() : false;
  }
  const std::string name(Stripped(std::string_view(pending_).substr(0, end)));
  const ChatTool* tool = FindTool(calls_.names_ids ? NameOfId(name) : std::string_view(name));
  if (end > kMostNameBytes || tool == nullptr) return GiveUp();
  Drop(end + consumed);
  held_.clear();
  Announce(calls_.names_ids ? name : absl::StrCat(options_.id_prefix, "_", call_count_), *tool);
  state_ = calls_.arguments == CallSyntax::Arguments::kJson ? State::kJson : State::kArguments;
  return true;
}

// Arguments end at the first call_end. Another mark of calls before it breaks the call; marks of thinking are
// text there.
bool AnswerParser::ReadJson() {
  const size_t end = pending_.find(calls_.call_end);
  size_t broken = 0;
  while ((broken = pending_.find(kMarkByte, broken)) < std::min(end, pending_.size())) {
    const std::string_view mark = std::string_view(pending_).substr(broken, 2);
    const bool may_be_end = end == std::string::npos && BeginningAtEnd(pending_, calls_.call_end) <= broken;
    if (mark != begin_thinking_ && mark != end_thinking_ && !may_be_end) break;
    broken += 2;
  }
  if (broken < std::min(end, pending_.size())) {
    EmitJson(broken, /*is_last=*/true);
    return BreakCall();
  }
  if (end == std::string::npos) {
    EmitJson(BeginningAtEnd(pending_, calls_.call_end), /*is_last=*/false);
    return false;
  }
  EmitJson(end, /*is_last=*/true);
  Drop(calls_.call_end.size());
  if (!has_arguments_) EmitArguments("{}");
  CompleteCall();
  return true;
}

void AnswerParser::EmitJson(size_t end, bool is_last) {
  std::string_view json = std::string_view(pending_).substr(0, end);
  const size_t begin = has_arguments_ ? 0 : std::min(json.find_first_not_of(kWhiteSpace), json.size());
  // White space and backticks at the end may be the fence's.
  size_t kept = json.find_last_not_of(calls_.fenced ? " \n\r\t`" : kWhiteSpace) + 1;
  kept = std::max({kept, begin, end - std::min(end, kMostFenceBytes)});
  EmitArguments(options_.syntax->Unmarked(json.substr(begin, kept - begin), /*as_shown=*/false));
  Drop(is_last ? end : kept);
}

bool AnswerParser::ReadArgument() {
  pending_.erase(0, pending_.find_first_not_of(kWhiteSpace));
  const Match key = At(calls_.key), end = At(calls_.call_end);
  if (key == Match::kYes) {
    Drop(calls_.key.size());
    state_ = State::kKey;
    return true;
  }
  if (end == Match::kYes) {
    Drop(calls_.call_end.size());
    EmitArguments(has_arguments_ ? "}" : "{}");
    CompleteCall();
    return true;
  }
  return key == Match::kMore || end == Match::kMore ? false : BreakCall();
}

bool AnswerParser::ReadKey() {
  const size_t end = pending_.find(calls_.key_end);
  const bool is_dsml = calls_.arguments == CallSyntax::Arguments::kDsml;
  const size_t value =
      is_dsml && end != std::string::npos ? pending_.find(calls_.value, end + calls_.key_end.size()) : end;
  if (value == std::string::npos) return pending_.size() > 2 * kMostKeyBytes ? BreakCall() : false;
  const std::string key(is_dsml ? pending_.substr(0, end) : Stripped(pending_.substr(0, end)));
  const bool is_repeated =
      std::find(keys_.begin(), keys_.end(), key) != keys_.end() && !arguments_.is_dictionary();
  if (value > kMostKeyBytes || key.find(kMarkByte) != std::string::npos || is_repeated) return BreakCall();
  keys_.push_back(key);
  if (!is_dsml) {
    value_type_ = arguments_.Of(key);
    is_string_ = value_type_.is_string();
    Drop(end + calls_.key_end.size());
    state_ = State::kBeforeValue;
    return true;
  }
  const size_t flag_begin = end + calls_.key_end.size();
  const std::string flag = pending_.substr(flag_begin, value - flag_begin);
  if (flag != "true" && flag != "false") return BreakCall();
  is_string_ = flag == "true";
  value_type_ = {};
  Drop(value + calls_.value.size());
  BeginArgument();
  return true;
}

bool AnswerParser::ReadValueBegin() {
  pending_.erase(0, pending_.find_first_not_of(kWhiteSpace));
  const Match begin = At(calls_.value), key = At(calls_.key), end = At(calls_.call_end);
  if (begin == Match::kYes) {
    Drop(calls_.value.size());
  } else if (pending_.empty() || begin == Match::kMore || key == Match::kMore || end == Match::kMore) {
    return false;
  } else if (key == Match::kYes || end == Match::kYes) {
    return BreakCall();
  }
  BeginArgument();
  is_bare_ = begin != Match::kYes;  // models leave the marks out at times
  return true;
}

void AnswerParser::BeginArgument() {
  state_ = is_string_ ? State::kStringValue : State::kJsonValue;
  searched_ = 0;
  is_bare_ = false;
  if (is_string_) EmitArguments(absl::StrCat(has_arguments_ ? ", " : "{", QuotedJson(keys_.back()), ": \""));
}

// A value that lacks the mark before it may also lack the one after it.
AnswerParser::ValueEnd AnswerParser::FindValueEnd(size_t from) const {
  ValueEnd end = {.at = pending_.find(calls_.value_end, from), .size = calls_.value_end.size()};
  if (!is_bare_) return end;
  for (const std::string* literal : {&calls_.key, &calls_.call_end}) {
    const size_t at = pending_.find(*literal, from);
    if (at < end.at) end = {.at = at, .size = 0};
  }
  return end;
}

bool AnswerParser::ReadString() {
  const ValueEnd end = FindValueEnd(0);
  size_t safe = end.at != std::string::npos ? end.at : BeginningAtEnd(pending_, calls_.value_end);
  if (end.at == std::string::npos && is_bare_) {
    safe = std::min({safe, BeginningAtEnd(pending_, calls_.key), BeginningAtEnd(pending_, calls_.call_end)});
  }
  std::string escaped;
  AppendEscapedJson(options_.syntax->Unmarked(pending_.substr(0, safe), /*as_shown=*/false), escaped);
  EmitArguments(escaped);
  Drop(safe);
  if (end.at == std::string::npos) return false;
  Drop(end.size);
  EmitArguments("\"");
  state_ = State::kArguments;
  return true;
}

// A value that is no JSON, whatever was announced, is a string; so is one of a type that the schema excludes,
// such as a number where it allows strings and null.
bool AnswerParser::ReadJsonValue() {
  const ValueEnd end = FindValueEnd(searched_);
  if (end.at == std::string::npos) {
    const size_t longest = std::max({calls_.value_end.size(), calls_.key.size(), calls_.call_end.size()});
    searched_ = pending_.size() - std::min(pending_.size(), longest - 1);
    return false;
  }
  const std::string value = options_.syntax->Unmarked(pending_.substr(0, end.at), /*as_shown=*/false);
  EmitArguments(
      absl::StrCat(has_arguments_ ? ", " : "{", QuotedJson(keys_.back()), ": ", value_type_.JsonOf(value)));
  Drop(end.at + end.size);
  state_ = State::kArguments;
  return true;
}

AnswerParser::Match AnswerParser::At(const std::string& literal) const {
  if (pending_.starts_with(literal)) return Match::kYes;
  return pending_.size() < literal.size() && literal.starts_with(pending_) ? Match::kMore : Match::kNo;
}

void AnswerParser::Hold(size_t bytes) {
  held_.append(pending_, 0, bytes);
  Drop(bytes);
}

void AnswerParser::HoldWhiteSpace() {
  Hold(std::min(pending_.find_first_not_of(kWhiteSpace), pending_.size()));
}

bool AnswerParser::GiveUp() {
  has_broken_call_ = true;
  state_ = State::kPlain;
  EmitText(std::exchange(held_, "") + std::exchange(pending_, ""));
  return false;
}

bool AnswerParser::BreakCall() {
  state_ = State::kPlain;
  EmitText(std::exchange(pending_, ""));
  return false;
}

void AnswerParser::EmitThinking(std::string_view marked) {
  const std::string thinking = options_.syntax->Unmarked(marked, /*as_shown=*/true);
  delta_->thinking += thinking;
  if (!thinking.empty()) AppendRun(delta_->runs, {AnswerRun::Part::kThinking, 0, thinking.size()});
}

void AnswerParser::EmitText(std::string_view marked) {
  std::string text = options_.syntax->Unmarked(marked, /*as_shown=*/true);
  if (behind_calls_) {
    if (text.find_first_not_of(kWhiteSpace) == std::string::npos) {
      blanks_ += text;
      return;
    }
    text.insert(0, std::exchange(blanks_, ""));
    behind_calls_ = false;
  }
  if (text.empty()) return;
  has_text_ = true;
  delta_->text += text;
  AppendRun(delta_->runs, {AnswerRun::Part::kText, 0, text.size()});
}

void AnswerParser::EmitArguments(std::string_view json) {
  if (json.empty()) return;
  has_arguments_ = true;
  AppendCalls(delta_->calls, {{.index = call_count_ - 1, .arguments = std::string(json)}});
  AppendRun(delta_->runs, {AnswerRun::Part::kCall, call_count_ - 1, json.size()});
}

void AnswerParser::Announce(std::string id, const ChatTool& tool) {
  if (calls_.arguments != CallSyntax::Arguments::kJson) arguments_ = ArgumentTypes(tool);
  has_arguments_ = false;
  keys_.clear();
  AppendRun(delta_->runs, {AnswerRun::Part::kCall, call_count_, 0});
  AppendCalls(delta_->calls, {{.index = call_count_++, .id = std::move(id), .name = tool.name}});
}

void AnswerParser::CompleteCall() {
  ++complete_calls_;
  AppendCalls(delta_->calls, {{.index = call_count_ - 1, .complete = true}});
  behind_calls_ = true;
  state_ = calls_.begin.empty() ? State::kText : State::kSection;
}

const ChatTool* AnswerParser::FindTool(std::string_view name) const {
  const auto found = std::find_if(options_.tools.begin(), options_.tools.end(),
                                  [name](const ChatTool& tool) { return tool.name == name; });
  return found == options_.tools.end() ? nullptr : &*found;
}

}  // namespace foredraft
