#include "scheduler/prefix_ends.h"

#include <utility>

#include "base/check.h"

namespace foredraft {

PrefixEnds::PrefixEnds(const std::vector<int>& block_counts) : readers_(block_counts.size()) {
  for (size_t group = 1; group < block_counts.size(); ++group) readers_[group].resize(block_counts[group]);
}

const std::vector<int32_t>& PrefixEnds::blocks(int32_t history_block, int group) const {
  return ends_.at(history_block)[group - 1];
}

void PrefixEnds::Add(int32_t history_block, std::vector<std::vector<int32_t>> blocks) {
  CHECK_EQ(blocks.size() + 1, readers_.size());
  for (size_t group = 1; group < readers_.size(); ++group) {
    for (const int32_t block : blocks[group - 1]) readers_[group][block].push_back(history_block);
  }
  CHECK(ends_.emplace(history_block, std::move(blocks)).second) << "history block " << history_block;
}

void PrefixEnds::Erase(int32_t history_block, std::vector<WindowBlock>* unread) {
  const auto found = ends_.find(history_block);
  if (found == ends_.end()) return;
  for (size_t group = 1; group < readers_.size(); ++group) {
    for (const int32_t block : found->second[group - 1]) {
      std::vector<int32_t>& readers = readers_[group][block];
      CHECK_EQ(std::erase(readers, history_block), 1u);
      if (readers.empty()) unread->push_back({.group = static_cast<int>(group), .block = block});
    }
  }
  ends_.erase(found);
}

void PrefixEnds::EraseReaders(int group, int32_t block, std::vector<WindowBlock>* unread) {
  const std::vector<int32_t>& readers = readers_[group][block];
  while (!readers.empty()) Erase(readers.back(), unread);
}

}  // namespace foredraft
