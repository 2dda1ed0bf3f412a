#include "client/load/workload.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/grouped_digits.h"
#include "base/status_macros.h"
#include "base/visible_text.h"
#include "client/load/random_bits.h"

namespace foredraft {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxLineBytes = size_t{16} << 20;  // over a million tokens, as text or as ids
constexpr size_t kMaxFileBytes = size_t{1} << 30;   // SPEED-Bench's longest prompts take 110 MB

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// A JSON value in a message, shortened.
std::string Shown(const Json& value) {
  constexpr size_t kMaxShown = 40;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

// Reads the next line without its end; false after the last. One byte over the limit shows that a line is
// longer.
bool NextLine(std::filebuf& file, std::string& line) {
  line.clear();
  int next = file.sbumpc();
  if (next == EOF) return false;
  for (; next != EOF && next != '\n' && line.size() <= kMaxLineBytes; next = file.sbumpc()) {
    line.push_back(static_cast<char>(next));
  }
  return true;
}

// Calls `read` with each line that is not blank and with its "file:line".
absl::Status ReadLines(const std::string& path,
                       const std::function<absl::Status(const std::string&, const std::string&)>& read) {
  std::filebuf file;
  std::error_code error;
  if (std::filesystem::is_directory(path, error) || file.open(path, std::ios::in) == nullptr) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  }
  std::string line;
  size_t bytes = 0;
  for (int64_t number = 1; NextLine(file, line); ++number) {
    const std::string where = absl::StrCat(path, ":", number);
    bytes += line.size() + 1;
    if (line.size() > kMaxLineBytes) return Refuse(where, ": longer than ", kMaxLineBytes >> 20, " MiB");
    if (bytes > kMaxFileBytes) return Refuse(path, ": longer than ", kMaxFileBytes >> 20, " MiB");
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    RETURN_IF_ERROR(read(line, where));
  }
  return absl::OkStatus();
}

bool IsBetween(const Json& value, int64_t low, int64_t high) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= static_cast<uint64_t>(high) && value >= low;
  return value.is_number_integer() && value >= low && value <= high;
}

absl::StatusOr<std::vector<int32_t>> ReadIds(const Json& value, const std::string& where, int vocab_size) {
  if (!value.is_array() || value.empty()) {
    return Refuse(where, ": input_ids: ", Shown(value), ", allowed a list of at least 1 token id");
  }
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& id : value) {
    if (!IsBetween(id, 0, vocab_size - 1)) {
      return Refuse(where, ": input_ids[", ids.size(), "]: ", Shown(id), ", allowed 0..", vocab_size - 1);
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// `where` is file:line.
absl::StatusOr<WorkItem> ReadItem(const std::string& line, const std::string& where, int vocab_size) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Refuse(where, ": not a JSON object: ", Shown(line));
  const bool has_ids = json.contains("input_ids"), has_prompt = json.contains("prompt");
  if (has_ids == has_prompt) {
    return Refuse(where, ": ", has_ids ? "both input_ids and prompt" : "neither input_ids nor prompt",
                  ", allowed exactly one");
  }
  WorkItem item;
  if (has_ids) {
    ASSIGN_OR_RETURN(item.token_ids, ReadIds(json["input_ids"], where, vocab_size));
  } else {
    const Json& prompt = json["prompt"];
    if (!prompt.is_string() || prompt.get_ref<const std::string&>().empty()) {
      return Refuse(where, ": prompt: ", Shown(prompt), ", allowed a text of at least 1 character");
    }
    item.text = prompt.get<std::string>();
  }
  if (!json.contains("output_tokens")) return Refuse(where, ": output_tokens: missing");
  if (!IsBetween(json["output_tokens"], 1, kMaxInt)) {
    return Refuse(where, ": output_tokens: ", Shown(json["output_tokens"]), ", allowed at least 1");
  }
  item.output_tokens = json["output_tokens"].get<int32_t>();
  item.name =
      json.contains("task_id") ? absl::StrCat("task ", Shown(json["task_id"]), " (", where, ")") : where;
  return item;
}

// Reads a user's message in a row of SPEED-Bench. `field` names it: "turns[1]".
absl::StatusOr<std::string> ReadTurn(const Json& value, const std::string& field) {
  // The dataset has this in place of texts that their licences do not let it include.
  constexpr std::string_view kPlaceholder = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE";
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    return Refuse(field, ": ", Shown(value), ", allowed a text of at least 1 character");
  }
  if (value.get_ref<const std::string&>().starts_with(kPlaceholder)) {
    return Refuse(field,
                  ": SPEED-Bench's placeholder, allowed a prompt: prepare the file as docs/operations.md "
                  "section 3 says");
  }
  return value.get<std::string>();
}

// Reads a turn as the prepared file has it: as a message.
absl::StatusOr<std::string> ReadMessage(const Json& value, const std::string& field) {
  if (!value.is_object() || !value.contains("content")) {
    return Refuse(field, ": ", Shown(value), ", allowed an object with content");
  }
  const Json role = value.contains("role") ? value["role"] : Json("user");
  if (role != "user") return Refuse(field, ".role: ", Shown(role), ", allowed \"user\"");
  return ReadTurn(value["content"], absl::StrCat(field, ".content"));
}

absl::StatusOr<std::vector<std::string>> ReadTurns(const Json& row, const std::string& where) {
  const bool has_turns = row.contains("turns"), has_messages = row.contains("messages");
  if (has_turns == has_messages) {
    return Refuse(where, ": ", has_turns ? "both turns and messages" : "neither turns nor messages",
                  ", allowed exactly one");
  }
  const char* const field = has_turns ? "turns" : "messages";
  const Json& list = row[field];
  if (!list.is_array() || list.empty()) {
    return Refuse(where, ": ", field, ": ", Shown(list), ", allowed a list of at least 1");
  }
  std::vector<std::string> turns;
  for (const Json& value : list) {
    const std::string name = absl::StrCat(where, ": ", field, "[", turns.size(), "]");
    ASSIGN_OR_RETURN(std::string turn, has_turns ? ReadTurn(value, name) : ReadMessage(value, name));
    turns.push_back(std::move(turn));
  }
  return turns;
}

// Reads a row of SPEED-Bench; the caller sets its output length.
absl::StatusOr<WorkItem> ReadSpeedBenchRow(const std::string& line, const std::string& where) {
  const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object()) return Refuse(where, ": not a JSON object: ", Shown(line));
  WorkItem item;
  ASSIGN_OR_RETURN(item.turns, ReadTurns(row, where));
  const bool has_category = row.contains("category") && !row["category"].is_null();
  const Json category = has_category ? row["category"] : Json("none");
  if (!category.is_string() || category.get_ref<const std::string&>().empty()) {
    return Refuse(where, ": category: ", Shown(category), ", allowed a text of at least 1 character");
  }
  item.category = VisibleText(category.get<std::string>());
  item.name = row.contains("question_id")
                  ? absl::StrCat("question ", Shown(row["question_id"]), " (", where, ")")
                  : where;
  return item;
}

// The token ids from which random prompts are drawn.
absl::StatusOr<std::vector<int32_t>> OrdinaryIds(const v1::GetModelResponse& model) {
  std::set<int32_t> special(model.eos_token_ids().begin(), model.eos_token_ids().end());
  special.insert({model.bos_token_id(), model.begin_thinking_token_id(), model.end_thinking_token_id()});
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < model.vocab_size(); ++id) {
    if (special.count(id) == 0) ids.push_back(id);
  }
  if (ids.empty()) return Refuse("vocab_size: ", model.vocab_size(), ", all tokens of the model are special");
  return ids;
}

std::vector<int32_t> RandomIds(const std::vector<int32_t>& ids, int count, uint64_t seed) {
  std::vector<int32_t> drawn(count);
  for (int i = 0; i < count; ++i) drawn[i] = ids[RandomBelow(static_cast<int64_t>(ids.size()), seed, i)];
  return drawn;
}

int Shortest(int length, double ratio) {
  return std::max(1, static_cast<int>(std::lround(length * (1 - ratio))));
}
int Longest(int length, double ratio) {
  return std::max(1, static_cast<int>(std::lround(length * (1 + ratio))));
}

int RandomLength(int length, double ratio, uint64_t seed, uint64_t index) {
  const int low = Shortest(length, ratio);
  return low + static_cast<int>(RandomBelow(Longest(length, ratio) - low + 1, seed, index));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DatasetWorkload>> DatasetWorkload::Read(const std::string& path,
                                                                       const v1::GetModelResponse& model) {
  std::vector<WorkItem> items;
  RETURN_IF_ERROR(ReadLines(path, [&](const std::string& line, const std::string& where) -> absl::Status {
    ASSIGN_OR_RETURN(WorkItem item, ReadItem(line, where, model.vocab_size()));
    items.push_back(std::move(item));
    return absl::OkStatus();
  }));
  if (items.empty()) return Refuse(path, ": no lines, allowed at least 1");
  return std::unique_ptr<DatasetWorkload>(new DatasetWorkload(path, std::move(items)));
}

std::string DatasetWorkload::Description() const {
  return absl::StrCat(path_, ", ", Grouped(size()), size() == 1 ? " line" : " lines");
}

absl::StatusOr<std::unique_ptr<SpeedBenchWorkload>> SpeedBenchWorkload::Read(
    const SpeedBenchOptions& options) {
  const std::set<std::string> wanted(options.categories.begin(), options.categories.end());
  std::vector<WorkItem> items;
  std::set<std::string> present;  // all rows are read, also those that are not sent
  const auto read = [&](const std::string& line, const std::string& where) -> absl::Status {
    ASSIGN_OR_RETURN(WorkItem item, ReadSpeedBenchRow(line, where));
    present.insert(item.category);
    item.output_tokens = options.max_tokens;
    if (wanted.empty() || wanted.count(item.category) > 0) items.push_back(std::move(item));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(ReadLines(options.path, read));
  if (present.empty()) return Refuse(options.path, ": no lines, allowed at least 1");
  for (const std::string& category : wanted) {
    if (present.count(category) > 0) continue;
    return Refuse("--category: ", category, ", ", options.path, " has ", absl::StrJoin(present, ", "));
  }
  return std::unique_ptr<SpeedBenchWorkload>(new SpeedBenchWorkload(options.path, std::move(items)));
}

std::string SpeedBenchWorkload::Description() const {
  std::set<std::string> categories;
  int64_t turns = 0;
  for (const WorkItem& item : items_) {
    categories.insert(item.category);
    turns += static_cast<int64_t>(item.turns.size());
  }
  return absl::StrCat("SPEED-Bench, ", path_, ", ", Grouped(size()), size() == 1 ? " row, " : " rows, ",
                      Grouped(turns), turns == 1 ? " turn: " : " turns: ", absl::StrJoin(categories, ", "),
                      "; at most ", Grouped(items_[0].output_tokens), " tokens out");
}

absl::StatusOr<std::unique_ptr<RandomWorkload>> RandomWorkload::Make(const RandomWorkloadOptions& options,
                                                                     const v1::GetModelResponse& model) {
  if (options.input_len < 1) return Refuse("--random-input-len: ", options.input_len, ", allowed at least 1");
  if (options.output_len < 1) {
    return Refuse("--random-output-len: ", options.output_len, ", allowed at least 1");
  }
  if (!(options.range_ratio >= 0 && options.range_ratio < 1)) {
    return Refuse("--random-range-ratio: ", options.range_ratio, ", allowed 0 to below 1");
  }
  const int64_t longest = static_cast<int64_t>(Longest(options.input_len, options.range_ratio)) +
                          Longest(options.output_len, options.range_ratio);
  if (model.max_seq_len() > 0 && longest > model.max_seq_len()) {
    return Refuse("--random-input-len + --random-output-len: up to ", Grouped(longest),
                  " tokens, the daemon's max_seq_len is ", Grouped(model.max_seq_len()));
  }
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, OrdinaryIds(model));
  return std::unique_ptr<RandomWorkload>(new RandomWorkload(options, std::move(ids)));
}

WorkItem RandomWorkload::Item(int64_t index) const {
  const uint64_t seed = RandomBits(options_.seed, index);
  const uint64_t lengths = ~seed;
  WorkItem item;
  item.name = absl::StrCat("request ", index);
  item.token_ids = RandomIds(ids_, RandomLength(options_.input_len, options_.range_ratio, lengths, 0), seed);
  item.output_tokens = RandomLength(options_.output_len, options_.range_ratio, lengths, 1);
  return item;
}

std::string RandomWorkload::Description() const {
  const auto length = [this](int middle) {
    const int low = Shortest(middle, options_.range_ratio), high = Longest(middle, options_.range_ratio);
    return low == high ? Grouped(low) : absl::StrCat(Grouped(low), "..", Grouped(high));
  };
  return absl::StrCat("random, ", length(options_.input_len), " tokens in, ", length(options_.output_len),
                      " out");
}

absl::StatusOr<std::unique_ptr<WarmUpWorkload>> WarmUpWorkload::Make(const Workload& shapes,
                                                                     const v1::GetModelResponse& model,
                                                                     uint64_t seed) {
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, OrdinaryIds(model));
  return std::unique_ptr<WarmUpWorkload>(new WarmUpWorkload(shapes, std::move(ids), seed));
}

WorkItem WarmUpWorkload::Item(int64_t index) const {
  constexpr int kBytesPerToken = 4;  // a rough guess: the client has no tokenizer
  WorkItem item = shapes_.Item(index);
  const std::string& text = item.turns.empty() ? item.text : item.turns[0];
  const int64_t length = item.token_ids.empty() ? 1 + static_cast<int64_t>(text.size()) / kBytesPerToken
                                                : static_cast<int64_t>(item.token_ids.size());
  item.token_ids = RandomIds(ids_, static_cast<int>(length), RandomBits(seed_, index));
  item.text.clear();
  item.turns.clear();
  return item;
}

WorkItem PromptsOnlyWorkload::Item(int64_t index) const {
  WorkItem item = prompts_.Item(index);
  if (item.turns.size() <= 1) item.output_tokens = 1;
  return item;
}

}  // namespace foredraft
