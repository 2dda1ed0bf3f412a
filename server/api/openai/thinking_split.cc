#include "server/api/openai/thinking_split.h"

#include <algorithm>
#include <string_view>

namespace foredraft {

void ThinkingSplit::FindMarkers(const OutputDelta& delta) {
  for (size_t i = 0; i < delta.marks.size(); ++i) {
    token_bytes_ += delta.marks[i].text_bytes;
    const int32_t id = delta.token_ids[i];
    if (id < 0 || (id != ids_.begin && id != ids_.end)) continue;
    // What was held back of an incomplete character comes before the marker. A special token has no text.
    const auto length = static_cast<int64_t>(tokenizer_.TokenBytes(id).size());
    const int64_t shown = std::min<int64_t>(length, delta.marks[i].text_bytes);
    markers_.push_back(
        {token_bytes_ - shown, token_bytes_, id == ids_.begin ? Phase::kThinking : Phase::kAnswer});
  }
}

ThinkingSplit::Parts ThinkingSplit::Feed(const OutputDelta& delta) {
  FindMarkers(delta);
  Parts parts;
  std::string_view text = delta.text;
  const auto take = [&](int64_t end) {
    const auto size =
        static_cast<size_t>(std::clamp<int64_t>(end - text_bytes_, 0, static_cast<int64_t>(text.size())));
    const std::string_view taken = text.substr(0, size);
    text.remove_prefix(size);
    text_bytes_ += static_cast<int64_t>(size);
    return taken;
  };
  const auto add = [&](std::string_view piece) {
    (phase_ == Phase::kThinking ? parts.thinking : parts.answer).append(piece);
  };
  while (!markers_.empty()) {
    const Marker& next = markers_.front();
    add(take(next.begin));
    take(next.end);
    if (text_bytes_ < next.end) return parts;  // the marker is held back, or a part of it
    phase_ = next.phase;
    markers_.pop_front();
  }
  add(text);
  text_bytes_ += static_cast<int64_t>(text.size());
  return parts;
}

}  // namespace foredraft
