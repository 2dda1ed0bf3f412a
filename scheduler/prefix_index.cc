#include "scheduler/prefix_index.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/types/span.h"
#include "base/check.h"

namespace foredraft {

size_t PrefixIndex::Hash::operator()(const Key& key) const {
  return absl::HashOf(key.parent, absl::MakeConstSpan(key.tokens.data(), key.tokens.size()));
}

size_t PrefixIndex::Hash::operator()(int32_t block) const {
  const Entry& entry = (*entries)[block];
  return (*this)(Key{entry.parent, entry.tokens});
}

bool PrefixIndex::Equal::operator()(const Key& key, int32_t block) const {
  const Entry& entry = (*entries)[block];
  return entry.parent == key.parent && std::ranges::equal(entry.tokens, key.tokens);
}

PrefixIndex::PrefixIndex(int block_count)
    : entries_(block_count), blocks_(0, Hash{&entries_}, Equal{&entries_}) {}

PrefixIndex::Node PrefixIndex::Find(uint64_t parent, std::span<const int32_t> tokens) const {
  auto found = blocks_.find(Key{parent, tokens});
  if (found == blocks_.end()) return {};
  return {.id = entries_[*found].id, .block = *found};
}

PrefixIndex::Node PrefixIndex::Insert(uint64_t parent, std::span<const int32_t> tokens, int32_t block) {
  if (Node present = Find(parent, tokens); present.id != 0) return present;
  CHECK_EQ(entries_[block].id, 0u) << "block " << block << " is indexed already";
  entries_[block] = {.id = next_id_++, .parent = parent, .tokens = {tokens.begin(), tokens.end()}};
  blocks_.insert(block);
  return {.id = entries_[block].id, .block = block};
}

void PrefixIndex::Erase(int32_t block) {
  CHECK_EQ(blocks_.erase(block), 1u);
  entries_[block] = {};
}

}  // namespace foredraft
