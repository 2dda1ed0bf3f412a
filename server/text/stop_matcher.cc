#include "server/text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace foredraft {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    CHECK(!text.empty());
    Stop stop;
    stop.fallback.resize(text.size());
    for (size_t i = 1, border = 0; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border]) border = stop.fallback[border - 1];
      if (text[i] == text[border]) ++border;
      stop.fallback[i] = border;
    }
    stop.text = std::move(text);
    stops_.push_back(std::move(stop));
  }
}

void StopMatcher::Stop::Advance(char byte) {
  while (matched > 0 && text[matched] != byte) matched = fallback[matched - 1];
  if (text[matched] == byte) ++matched;
}

size_t StopMatcher::LongestStart() const {
  size_t longest = 0;
  for (const Stop& stop : stops_) longest = std::max(longest, stop.matched);
  return longest;
}

StopMatcher::Output StopMatcher::Feed(std::string_view delta) {
  if (stopped_) return {};
  if (stops_.empty()) return {.text = std::string(delta)};
  Output output;
  for (size_t i = 0; i < delta.size(); ++i) {
    size_t longest = 0;
    for (size_t s = 0; s < stops_.size(); ++s) {
      stops_[s].Advance(delta[i]);
      if (stops_[s].complete() && stops_[s].text.size() > longest) {
        longest = stops_[s].text.size();
        output.stop_index = static_cast<int>(s);
      }
    }
    if (longest == 0) continue;
    pending_.append(delta.substr(0, i + 1));
    pending_.erase(pending_.size() - longest);
    stopped_ = true;
    output.text = std::exchange(pending_, std::string());
    return output;
  }
  pending_.append(delta);
  const size_t safe = pending_.size() - LongestStart();
  output.text = pending_.substr(0, safe);
  pending_.erase(0, safe);
  return output;
}

std::string StopMatcher::Flush() { return std::exchange(pending_, std::string()); }

}  // namespace foredraft
