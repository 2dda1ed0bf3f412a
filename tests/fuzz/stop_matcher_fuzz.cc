// Stop strings, text and chunk sizes from the input, against a search of the whole text. Layout: stop count,
// then size and bytes of each stop, then the text; the text's own bytes also give the sizes of its chunks.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/text/stop_matcher.h"

namespace foredraft {
namespace {

StopMatcher::Output FindInWhole(const std::vector<std::string>& stops, std::string_view text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    StopMatcher::Output best;
    size_t longest = 0;
    for (size_t s = 0; s < stops.size(); ++s) {
      const size_t size = stops[s].size();
      if (size > end || size <= longest || text.substr(end - size, size) != stops[s]) continue;
      longest = size;
      best = {std::string(text.substr(0, end - size)), static_cast<int>(s)};
    }
    if (longest > 0) return best;
  }
  return {std::string(text), -1};
}

void TryStops(std::string_view input) {
  const auto take = [&](size_t count) {
    const std::string_view taken = input.substr(0, count);
    input.remove_prefix(taken.size());
    return taken;
  };
  std::vector<std::string> stops;
  for (int count = static_cast<uint8_t>(take(1)[0]) % 5; count > 0 && input.size() > 1; --count) {
    stops.emplace_back(take(1 + static_cast<uint8_t>(take(1)[0]) % 16));
  }
  const StopMatcher::Output expected = FindInWhole(stops, input);
  StopMatcher matcher(stops);
  StopMatcher::Output all;
  while (!input.empty()) {
    const StopMatcher::Output output = matcher.Feed(take(1 + static_cast<uint8_t>(input[0]) % 4));
    all.text += output.text;
    if (output.stop_index >= 0) all.stop_index = output.stop_index;
  }
  all.text += matcher.Flush();
  CHECK_EQ(all.text, expected.text);
  CHECK_EQ(all.stop_index, expected.stop_index);
}

}  // namespace
}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) foredraft::TryStops(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
