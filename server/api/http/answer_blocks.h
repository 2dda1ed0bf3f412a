#pragma once

// The blocks of a chat answer in the order in which the model wrote them: thinking, texts and calls, one open
// at a time. Used by wires that have a place for each block. The pieces of a stream, joined, are the whole
// answer, however it was cut.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "server/output/response_sink.h"

namespace foredraft {

struct AnswerBlock {
  AnswerRun::Part part;
  std::string id;         // of a call
  std::string name;       // of a call
  std::string text;       // so far; of a call: its arguments
  bool complete = false;  // of a call: it is over, and its format was kept
};

// Learns what happens to a block; `index` is its place in the answer.
class BlockListener {
 public:
  virtual ~BlockListener() = default;
  virtual void Opened(size_t index, const AnswerBlock& block) = 0;
  virtual void Grew(size_t index, const AnswerBlock& block, std::string_view piece) = 0;
  virtual void Closed(size_t index, const AnswerBlock& block) = 0;
};

// Owner: one answer; not thread-safe.
class AnswerBlocks {
 public:
  explicit AnswerBlocks(bool hides_thinking) : hides_thinking_(hides_thinking) {}

  void Add(const OutputDelta& delta, BlockListener& listener);
  // Adds an empty text if the answer has no block at all.
  void AddEmptyText(BlockListener& listener);
  // Called after the last delta.
  void End(BlockListener& listener);

  const std::vector<AnswerBlock>& blocks() const { return blocks_; }

 private:
  void Continue(const AnswerRun& run, const CallDelta* call, std::string_view piece, BlockListener& listener);

  const bool hides_thinking_;
  std::vector<AnswerBlock> blocks_;
  int last_call_ = -1;    // index of the last block's call; -1 if it is no call
  bool is_open_ = false;  // whether the last block is open
};

}  // namespace foredraft
