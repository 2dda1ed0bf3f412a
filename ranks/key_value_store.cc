#include "ranks/key_value_store.h"

#include <utility>

namespace foredraft {

void KeyValueStore::Clear() {
  values_.clear();
  waiting_ranks_.clear();
  bytes_ = 0;
}

bool KeyValueStore::has_room() const {
  constexpr size_t kMostKeys = 1 << 16;
  return values_.size() + waiting_ranks_.size() < kMostKeys;
}

std::optional<std::string> KeyValueStore::Get(const std::string& key, int rank) {
  if (const auto found = values_.find(key); found != values_.end()) return found->second;
  waiting_ranks_[key].insert(rank);
  return std::nullopt;
}

std::vector<int> KeyValueStore::Set(const std::string& key, std::string value) {
  std::string& stored = values_[key];
  bytes_ += static_cast<int64_t>(value.size()) - static_cast<int64_t>(stored.size());
  stored = std::move(value);
  const auto waiting = waiting_ranks_.extract(key);
  if (waiting.empty()) return {};
  return {waiting.mapped().begin(), waiting.mapped().end()};
}

}  // namespace foredraft
