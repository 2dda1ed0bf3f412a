#include "tests/grammar/key_order.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace foredraft {
namespace {

// The lists of names that a schema gives properties in.
void CollectOrders(const JsonValue& schema, std::vector<const JsonValue*>& orders) {
  for (const JsonValue& item : schema.items) CollectOrders(item, orders);
  if (const JsonValue* properties = schema.Find("properties");
      properties != nullptr && properties->is_object()) {
    orders.push_back(properties);
  }
}

// The value with the keys of each object in the order of the list that names most of them.
JsonValue InOrder(const JsonValue& value, const std::vector<const JsonValue*>& orders) {
  JsonValue result = value;
  for (size_t i = 0; i < value.items.size(); ++i) result.items[i] = InOrder(value.items[i], orders);
  if (!value.is_object()) return result;
  const auto place = [](const JsonValue& order, const std::string& key) {
    return std::find(order.keys.begin(), order.keys.end(), key) - order.keys.begin();
  };
  const JsonValue* best = nullptr;
  int64_t best_count = 0;
  for (const JsonValue* order : orders) {
    const int64_t count = std::count_if(value.keys.begin(), value.keys.end(),
                                        [&](const std::string& key) { return order->Find(key) != nullptr; });
    if (count > best_count) {
      best = order;
      best_count = count;
    }
  }
  if (best == nullptr) return result;
  std::vector<size_t> keys(value.keys.size());
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  std::stable_sort(keys.begin(), keys.end(), [&](size_t a, size_t b) {
    return place(*best, value.keys[a]) < place(*best, value.keys[b]);
  });
  JsonValue sorted = result;
  for (size_t i = 0; i < keys.size(); ++i) {
    sorted.keys[i] = value.keys[keys[i]];
    sorted.items[i] = result.items[keys[i]];
  }
  return sorted;
}

// Where the search is: the text so far, and the grammar behind it. A value.
struct Place {
  Matcher matcher;
  std::string text;
};

// Tries the keys of each object in every order, the value's own first, and goes back where none is taken.
// Before that it moves a key that is left over to the last place where it is taken.
class Search {
 public:
  Search(const LargeVocabulary& vocabulary, int64_t max_bytes) : left_(max_bytes) {
    for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
      const std::vector<int32_t> ids = vocabulary.Encode(std::string(1, static_cast<char>(byte)));
      byte_ids_[byte] = ids.size() == 1 ? ids[0] : -1;
    }
  }

  bool TakeValue(Place& place, const JsonValue& value) {
    if (value.is_array()) return TakeItems(place, value);
    if (!value.is_object()) return Take(place, DumpJson(value));
    if (!Take(place, "{")) return false;
    if (TakeMoved(place, value)) return true;
    std::vector<bool> used(value.keys.size());
    return TakeKeys(place, value, used, 0);
  }

 private:
  bool Take(Place& place, std::string_view text) {
    for (const char c : text) {
      if (--left_ < 0) return false;
      const auto taken = place.matcher.Advance(byte_ids_[static_cast<uint8_t>(c)]);
      if (!taken.ok() || !*taken) return false;
    }
    place.text.append(text);
    return true;
  }

  bool TakeItems(Place& place, const JsonValue& array) {
    if (!Take(place, "[")) return false;
    for (size_t i = 0; i < array.items.size(); ++i) {
      if ((i > 0 && !Take(place, ", ")) || !TakeValue(place, array.items[i])) return false;
    }
    return Take(place, "]");
  }

  bool TakeKey(Place& place, const JsonValue& object, size_t key, size_t count) {
    if (count > 0 && !Take(place, ", ")) return false;
    return Take(place, QuoteJson(object.keys[key])) && Take(place, ": ") &&
           TakeValue(place, object.items[key]);
  }

  bool TakeMoved(Place& place, const JsonValue& object) {
    std::vector<size_t> order(object.keys.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::vector<Place> places = {place};  // behind each key of `order` that is taken
    for (size_t moves = 0; places.size() <= order.size() && moves <= 4 * order.size();) {
      const size_t count = places.size() - 1;
      bool is_taken = false;
      for (size_t i = count; i < order.size() && !is_taken; ++i) {
        Place next = places.back();
        is_taken = TakeKey(next, object, order[i], count);
        if (!is_taken) continue;
        std::rotate(order.begin() + count, order.begin() + i, order.begin() + i + 1);
        places.push_back(std::move(next));
      }
      if (is_taken) continue;
      size_t at = count;
      for (++moves; at > 0 && !is_taken;) {
        Place next = places[--at];
        is_taken = TakeKey(next, object, order[count], at);
      }
      if (!is_taken) return false;
      std::rotate(order.begin() + at, order.begin() + count, order.begin() + count + 1);
      places.resize(at + 1, place);
    }
    if (places.size() <= order.size() || !Take(places.back(), "}")) return false;
    place = std::move(places.back());
    return true;
  }

  bool TakeKeys(Place& place, const JsonValue& object, std::vector<bool>& used, size_t count) {
    if (count == used.size()) return Take(place, "}");
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i]) continue;
      Place next = place;
      if (!TakeKey(next, object, i, count)) continue;
      used[i] = true;
      if (TakeKeys(next, object, used, count + 1)) {
        place = std::move(next);
        return true;
      }
      used[i] = false;
    }
    return false;
  }

  std::array<int32_t, 256> byte_ids_ = {};
  int64_t left_;  // bytes
};

}  // namespace

std::string DumpJson(const JsonValue& value) {
  if (value.is_string()) return QuoteJson(value.text);
  if (value.is_number()) return value.text;
  if (value.kind == JsonValue::kNull) return "null";
  if (value.kind == JsonValue::kBoolean) return value.boolean ? "true" : "false";
  std::string out = value.is_array() ? "[" : "{";
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) out += ", ";
    if (value.is_object()) out += QuoteJson(value.keys[i]) + ": ";
    out += DumpJson(value.items[i]);
  }
  return out + (value.is_array() ? "]" : "}");
}

std::optional<std::string> InAnOrderOf(const std::shared_ptr<const Grammar>& grammar, const JsonValue& value,
                                       const JsonValue& schema, const LargeVocabulary& vocabulary,
                                       int64_t max_bytes) {
  std::vector<const JsonValue*> orders;
  CollectOrders(schema, orders);
  Place place = {Matcher(grammar), ""};
  if (!Search(vocabulary, max_bytes).TakeValue(place, InOrder(value, orders)) || !place.matcher.IsAccepting())
    return std::nullopt;
  return std::move(place.text);
}

}  // namespace foredraft
