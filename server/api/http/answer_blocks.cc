#include "server/api/http/answer_blocks.h"

#include "base/check.h"

namespace foredraft {
namespace {

using Part = AnswerRun::Part;

// Takes the next bytes off a part.
std::string_view TakeFront(std::string_view& part, size_t bytes) {
  CHECK_LE(bytes, part.size()) << "a run is longer than its part";
  const std::string_view front = part.substr(0, bytes);
  part.remove_prefix(bytes);
  return front;
}

}  // namespace

void AnswerBlocks::Add(const OutputDelta& delta, BlockListener& listener) {
  std::string_view thinking = delta.thinking, text = delta.text;
  // A delta's calls are in their order, and each has at most one run: no later run belongs to an earlier
  // call.
  auto call = delta.calls.begin();
  if (call != delta.calls.end() && call->index == last_call_) blocks_.back().complete |= call->complete;
  for (const AnswerRun& run : delta.runs) {
    switch (run.part) {
      case Part::kThinking:
        if (const std::string_view piece = TakeFront(thinking, run.bytes); !hides_thinking_) {
          Continue(run, nullptr, piece, listener);
        }
        break;
      case Part::kText:
        Continue(run, nullptr, TakeFront(text, run.bytes), listener);
        break;
      case Part::kCall:
        while (call != delta.calls.end() && call->index != run.call) ++call;
        CHECK(call != delta.calls.end()) << "a run of a call that the delta does not have";
        Continue(run, &*call, call->arguments, listener);
        break;
    }
  }
}

void AnswerBlocks::Continue(const AnswerRun& run, const CallDelta* call, std::string_view piece,
                            BlockListener& listener) {
  const int call_index = call == nullptr ? -1 : run.call;
  if (!is_open_ || blocks_.back().part != run.part || last_call_ != call_index) {
    End(listener);
    AnswerBlock block{.part = run.part};
    if (call != nullptr) {
      block.id = call->id;
      block.name = call->name;
    }
    blocks_.push_back(std::move(block));
    last_call_ = call_index;
    is_open_ = true;
    listener.Opened(blocks_.size() - 1, blocks_.back());
  }
  AnswerBlock& block = blocks_.back();
  if (call != nullptr) block.complete |= call->complete;
  if (piece.empty()) return;
  block.text += piece;
  listener.Grew(blocks_.size() - 1, block, piece);
}

void AnswerBlocks::AddEmptyText(BlockListener& listener) {
  if (blocks_.empty()) Continue({.part = Part::kText}, nullptr, "", listener);
}

void AnswerBlocks::End(BlockListener& listener) {
  if (!is_open_) return;
  is_open_ = false;
  listener.Closed(blocks_.size() - 1, blocks_.back());
}

}  // namespace foredraft
