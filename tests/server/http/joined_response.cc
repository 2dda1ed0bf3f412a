#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/server/http/scripted_answers.h"

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;

// The pieces of the item that is open.
class OpenItem {
 public:
  explicit OpenItem(const json& added) : item_(added["item"]), index_(added["output_index"]) {
    CHECK_EQ(item_["status"].get<std::string>(), "in_progress");
    CHECK(!item_.contains("content") || item_["content"].empty()) << added.dump();
    for (const char* field : {"arguments", "input"}) CHECK(item_.value(field, "").empty()) << added.dump();
  }

  void Add(const std::string& type, const json& data) {
    CHECK(data["output_index"] == index_ && data["item_id"] == item_["id"]) << data.dump();
    if (type == "response.content_part.added") {
      CHECK(item_.contains("content") && !has_part_) << data.dump();
      has_part_ = true;
      CHECK_EQ(data["part"]["text"].get<std::string>(), "");
    } else if (data.contains("delta")) {
      CHECK(has_part_ || !item_.contains("content")) << data.dump();
      CHECK(!is_done_) << data.dump();
      const std::string delta = data["delta"];
      CHECK(!delta.empty());
      text_ += delta;
    } else if (type == "response.content_part.done") {
      CHECK(is_done_);
      CHECK_EQ(data["part"]["text"].get<std::string>(), text_);
    } else {
      CHECK(!is_done_ && type.ends_with(".done")) << type;
      is_done_ = true;
      for (const char* field : {"text", "arguments", "input"}) {
        CHECK(!data.contains(field) || data[field] == text_) << data.dump();
      }
    }
  }

  // The item as its end says, which is what its pieces were.
  json End(const json& done) const {
    CHECK(is_done_ && done["output_index"] == index_ && done["item"]["id"] == item_["id"]) << done.dump();
    const json& item = done["item"];
    const char* field = item.contains("input") ? "input" : "arguments";
    const std::string text = item.contains(field)      ? item[field].get<std::string>()
                             : item["content"].empty() ? ""
                                                       : item["content"][0]["text"].get<std::string>();
    CHECK_EQ(text, text_);
    return item;
  }

 private:
  const json item_;
  const json index_;
  std::string text_;
  bool has_part_ = false;
  bool is_done_ = false;
};

}  // namespace

json JoinedResponse(const std::vector<SentEvent>& events) {
  CHECK_GE(events.size(), 3u);
  CHECK(events[0].type == "response.created" && events[1].type == "response.in_progress");
  json output = json::array();
  std::optional<OpenItem> open;
  for (size_t i = 0; i < events.size(); ++i) {
    const auto& [type, data] = events[i];
    CHECK_EQ(data["sequence_number"].get<size_t>(), i) << type;
    if (i < 2) {
      CHECK_EQ(data["response"]["id"].dump(), events[0].data["response"]["id"].dump());
    } else if (type == "keepalive") {
      CHECK_EQ(data.size(), 2u) << data.dump();
    } else if (type == "response.output_item.added") {
      CHECK(!open.has_value() && data["output_index"] == output.size()) << data.dump();
      open.emplace(data);
    } else if (type == "response.output_item.done") {
      CHECK(open.has_value()) << data.dump();
      output.push_back(open->End(data));
      open.reset();
    } else if (i + 1 < events.size()) {
      CHECK(open.has_value()) << type;
      open->Add(type, data);
    }
  }
  const auto& [type, data] = events.back();
  const json& response = data["response"];
  CHECK_EQ(type, "response." + response["status"].get<std::string>());
  CHECK_EQ(response["id"].dump(), events[0].data["response"]["id"].dump());
  if (type != "response.failed") {
    CHECK(!open.has_value());
    CHECK_EQ(response["output"].dump(), output.dump());
  }
  return response;
}

}  // namespace foredraft
