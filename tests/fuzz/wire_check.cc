#include "tests/fuzz/wire_check.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/statusor.h"
#include "base/check.h"

namespace foredraft {
namespace {

// A header of HTTP, and no longer than the names that are kept.
void CheckNotes(const FieldNotes& notes) {
  const std::string header = notes.Header();
  CHECK_LE(header.size(), FieldNotes::kMostNames * (FieldNotes::kMostNameBytes + 2) + 8) << header;
  CHECK(std::all_of(header.begin(), header.end(), [](char c) { return c >= ' ' && c <= '~'; })) << header;
}

AnswerLabels Labels() {
  return {.request_id = "r-1",
          .model = "abacus",
          .fingerprint = "numerics",
          .created = 7,
          .tokenizer = &ServedAbacus::Get().tokenizer()};
}

std::unique_ptr<AnswerFormat> FormatOf(const HttpWire& wire, const std::string& body, bool refuses_unknown) {
  absl::StatusOr<HttpWire::ReadResult> read = wire.Read(body, {.refuses_unknown = refuses_unknown});
  CHECK(read.ok()) << read.status();
  read->format->Begin(Labels());
  return std::move(read->format);
}

// What is read strictly is read tolerantly, too, without a note of an unknown field; and a further unknown
// field changes nothing but the notes.
void CheckOtherWay(const HttpWire& wire, const std::string& body, bool refuses_unknown,
                   const WireRequest& request) {
  const size_t begin = body.find('{') + 1;
  const std::string other =
      refuses_unknown ? body : body.substr(0, begin) + "\"\\u0001 unknown\": [{}], " + body.substr(begin);
  const auto read = wire.Read(other, {});
  CHECK(read.ok()) << read.status();
  const ClientRequest &a = request.common, &b = read->request.common;
  CHECK_EQ(b.notes.count(), a.notes.count() + (refuses_unknown ? 0 : 1));
  CHECK(a.max_tokens == b.max_tokens && a.stop == b.stop && a.tools.choice == b.tools.choice);
  CHECK(a.tools.tools.size() == b.tools.tools.size() && a.choices.thinking == b.choices.thinking);
  CHECK(a.choices.reasoning_effort == b.choices.reasoning_effort && a.sampling.seed == b.sampling.seed);
}

void CheckFailure(const HttpWire& wire, AnswerFormat& format, const absl::Status& status) {
  const HttpAnswer answer = format.Failed(status, "r-1");
  CHECK(answer.status == 200 || answer.status >= 400) << answer.status;
  CHECK(answer.content_type != "application/json" || nlohmann::json::accept(answer.body)) << answer.body;
  CHECK(nlohmann::json::accept(wire.Refusal(413, std::string(status.message())).body));
}

}  // namespace

std::string WholeText(AnswerFormat& format, const ServedAbacus::Answer& answer) {
  return format.Whole({{.whole = answer.whole, .end = answer.end, .labels = {.seed = 7}}});
}

std::string StreamText(AnswerFormat& format, const ServedAbacus::Answer& answer) {
  std::string stream;
  const ResponseLabels labels{.seed = 7};
  for (size_t i = 0; i < answer.deltas.size(); ++i) {
    const bool is_last = i + 1 == answer.deltas.size();
    stream += format.Delta(0, answer.deltas[i], is_last ? &answer.end : nullptr, labels);
  }
  return stream + format.StreamEnd({{.whole = {.stats = answer.stats}, .end = answer.end, .labels = labels}});
}

void FuzzWire(const HttpWire& wire, bool refuses_unknown, const std::string& body,
              const CheckWireAnswer& check) {
  FieldNotes notes;
  absl::StatusOr<HttpWire::ReadResult> read =
      wire.Read(body, {.refuses_unknown = refuses_unknown, .notes = &notes});
  CheckNotes(notes);
  if (!read.ok()) {
    CheckFailure(wire, *wire.ErrorFormat(), read.status());
    return ServedAbacus::CheckRefusal(read.status());
  }
  CHECK_EQ(read->request.choice_count(), 1);
  CheckOtherWay(wire, body, refuses_unknown, read->request);
  ServedAbacus& abacus = ServedAbacus::Get();
  auto checked = abacus.validator().Check(read->request.TakeChoice(0));
  if (!checked.ok()) {
    CheckFailure(wire, *read->format, checked.status());
    return ServedAbacus::CheckRefusal(checked.status());
  }
  check(FormatOf(wire, body, refuses_unknown), FormatOf(wire, body, refuses_unknown),
        abacus.Play(*std::move(checked)));
}

}  // namespace foredraft
