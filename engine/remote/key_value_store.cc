#include "engine/remote/key_value_store.h"

#include <utility>

namespace foredraft {

void KeyValueStore::Clear() {
  values_.clear();
  waiting_ranks_.clear();
}

std::optional<std::string> KeyValueStore::Get(const std::string& key, int rank) {
  if (const auto found = values_.find(key); found != values_.end()) return found->second;
  waiting_ranks_[key].push_back(rank);
  return std::nullopt;
}

std::vector<int> KeyValueStore::Set(const std::string& key, std::string value) {
  values_[key] = std::move(value);
  const auto waiting = waiting_ranks_.extract(key);
  return waiting.empty() ? std::vector<int>{} : waiting.mapped();
}

}  // namespace foredraft
