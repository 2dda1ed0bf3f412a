// Time to compile a JSON Schema, first mask included, and to make the mask of each token of a valid text,
// over a vocabulary of 129,280 tokens on one core. Also counts schemas that are refused, valid texts that are
// not taken and invalid ones that are.
//
// usage: grammar_masks [--maskbench DIR] [--every N] [--list FILE] [--markdown] [--quick]
//
// DIR: the folder maskbench/data of guidance-ai/jsonschemabench, which has no licence file and so is not in
// this tree. Without it: the schemas below. --every 10: every tenth schema. --list: a line per refusal and
// per text that is judged otherwise.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "grammar/compile.h"
#include "grammar/json_source.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/bench_report.h"
#include "tests/grammar/key_order.h"
#include "tests/grammar/large_vocabulary.h"

namespace foredraft {
namespace {

constexpr int kVocabSize = 129'280;
constexpr int kTimedTokens = 4096;  // of one text

struct Text {
  std::string text;
  bool is_valid;
  const JsonValue* value = nullptr;  // of a text whose keys may have any order
};
struct Schema {
  std::string name;
  std::string source;
  std::vector<Text> texts;
  std::shared_ptr<const JsonValue> root = nullptr;  // what the texts' values are in
};

std::vector<Schema> BuiltIn() {
  return {
      {"weather",
       R"({"type":"object","properties":{"city":{"type":"string"},"unit":{"enum":["celsius","fahrenheit"]},"days":{"type":"integer","minimum":1,"maximum":14}},"required":["city","unit"],"additionalProperties":false})",
       {{R"({"city": "San Francisco", "unit": "celsius", "days": 7})", true},
        {R"({"city": "Bern", "unit": "kelvin"})", false}}},
      {"people",
       R"({"type":"array","items":{"type":"object","properties":{"name":{"type":"string","maxLength":40},"born":{"type":"string","format":"date"},"mail":{"type":"string","pattern":"^[a-z.]+@[a-z.]+$"},"tags":{"type":"array","items":{"type":"string"}}},"required":["name","born"]}})",
       {{R"([{"name": "Ada Lovelace", "born": "1815-12-10", "mail": "ada@example.org", "tags": ["mathematics", "engines"]}, {"name": "Alan", "born": "1912-06-23", "note": {"free": [1, 2.5, null]}}])",
         true}}},
      {"anything",
       "{}",
       {{R"({"list": [1, 2, 3], "text": "a longer text, with marks; and \"quotes\"\n", "deep": {"er": {"x": true}}})",
         true}}},
      {"tree",
       R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"value":{"type":"number"},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["value"]}}})",
       {{R"({"value": 1.5, "children": [{"value": 2, "children": []}, {"value": -3e4}]})", true}}},
  };
}

std::vector<Schema> ReadMaskBench(const std::string& folder, int every) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Schema> schemas;
  for (size_t i = 0; i < paths.size(); i += static_cast<size_t>(every)) {
    std::ifstream file(paths[i], std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    auto root = ParseJsonSource(text, 1000);
    if (!root.ok()) {
      std::fprintf(stderr, "%s: %s\n", paths[i].c_str(), root.status().ToString().c_str());
      continue;
    }
    Schema schema = {paths[i].stem(), DumpJson(*(*root)->Find("schema")), {}, *std::move(root)};
    for (const JsonValue& test : schema.root->Find("tests")->items) {
      const JsonValue* data = test.Find("data");
      schema.texts.push_back({DumpJson(*data), test.Find("valid")->boolean, data});
    }
    schemas.push_back(std::move(schema));
  }
  return schemas;
}

class Bench {
 public:
  Bench(const LargeVocabulary& vocabulary, std::FILE* list) : vocabulary_(vocabulary), list_(list) {}

  void Run(const Schema& schema) {
    const auto start = std::chrono::steady_clock::now();
    const auto grammar = CompileConstraint({.kind = Constraint::kJsonSchema, .source = schema.source},
                                           vocabulary_.vocabulary(), GrammarLimits());
    const double milliseconds = 1e3 * Since(start);
    if (!grammar.ok()) {
      ++counts_["schemas refused"];
      List(schema.name, std::string(grammar.status().message()));
      return;
    }
    ++counts_["schemas compiled"];
    AddSample(measurements_, "compile", "ms", milliseconds);
    for (const Text& text : schema.texts) {
      std::string verdict = Read(*grammar, text.text);
      if (!verdict.empty() && text.value != nullptr) {
        const auto ordered = InAnOrderOf(*grammar, *text.value, *schema.root->Find("schema"), vocabulary_);
        if (ordered.has_value()) verdict = Read(*grammar, *ordered);
      }
      ++counts_[text.is_valid ? "valid texts" : "invalid texts"];
      if (text.is_valid == verdict.empty()) continue;
      ++counts_[text.is_valid ? "valid texts not taken" : "invalid texts taken"];
      List(schema.name, absl::StrFormat("%s: %s: %s", text.is_valid ? "VALID NOT TAKEN" : "INVALID TAKEN",
                                        verdict, text.text));
    }
    made_ += (*grammar)->mask_counts().made;
    reused_ += (*grammar)->mask_counts().reused;
  }

  void Print(const ReportFlags& flags, const std::string& command) const {
    foredraft::Print(
        {.heading = "Masks of grammars",
         .measured = "One core, 129,280 tokens. A mask is made or found again; the percentiles are over all "
                     "tokens of all texts.",
         .command = command,
         .measurements = Percentiles()},
        flags.markdown);
    for (const auto& [name, count] : counts_)
      std::printf("%-24s %10ld\n", name.c_str(), static_cast<long>(count));
    std::printf("%-24s %10ld\n%-24s %10ld\n", "masks made", static_cast<long>(made_), "masks found again",
                static_cast<long>(reused_));
  }

 private:
  static double Since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  void List(const std::string& name, const std::string& what) const {
    if (list_ != nullptr) std::fprintf(list_, "%s: %s\n", name.c_str(), what.substr(0, 600).c_str());
  }

  // Empty if the text is taken, otherwise why not.
  std::string Read(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
    Matcher matcher(grammar);
    const std::vector<int32_t> ids = vocabulary_.Encode(text);
    size_t read = 0;
    int count = 0;
    for (const int32_t id : ids) {
      const auto start = std::chrono::steady_clock::now();
      const auto mask = matcher.Mask();
      const double microseconds = 1e6 * Since(start);
      if (!mask.ok()) return mask.status().ToString();
      const bool is_timed = count++ < kTimedTokens;
      if (is_timed) AddSample(measurements_, "mask", "us", microseconds);
      const auto advance_start = std::chrono::steady_clock::now();
      const auto taken = matcher.Advance(id);
      if (is_timed) AddSample(measurements_, "advance", "us", 1e6 * Since(advance_start));
      if (!taken.ok()) return taken.status().ToString();
      CHECK_EQ(*taken, (*mask)->Allows(id));
      if (!*taken) return absl::StrFormat("after %s", text.substr(0, read).substr(read > 60 ? read - 60 : 0));
      read += vocabulary_.vocabulary()->bytes(id).size();
    }
    return matcher.IsAccepting() ? "" : "not complete";
  }

  std::vector<Measurement> Percentiles() const {
    std::vector<Measurement> rows;
    for (Measurement measurement : measurements_) {
      std::sort(measurement.samples.begin(), measurement.samples.end());
      for (const double percent : {50.0, 90.0, 95.0, 99.0, 100.0}) {
        const size_t last = measurement.samples.size() - 1;
        const double sample =
            measurement.samples[static_cast<size_t>(percent / 100 * static_cast<double>(last))];
        AddSample(rows, absl::StrFormat("%s p%g", measurement.name, percent), measurement.unit, sample);
      }
    }
    return rows;
  }

  const LargeVocabulary& vocabulary_;
  std::FILE* list_;
  std::vector<Measurement> measurements_;
  std::map<std::string, int64_t> counts_;
  int64_t made_ = 0, reused_ = 0;
};

int Main(int argc, char** argv) {
  std::string folder, list_path;
  int every = 1;
  ReportFlags flags;
  const std::string command = ParseBenchFlags(argc, argv,
                                              {{"--maskbench", &folder},
                                               {"--every", &every},
                                               {"--list", &list_path},
                                               {"--markdown", &flags.markdown},
                                               {"--quick", &flags.quick}});
  const std::vector<Schema> schemas = folder.empty() ? BuiltIn() : ReadMaskBench(folder, every);
  std::vector<std::string> texts;
  for (const Schema& schema : schemas) {
    if (schema.source.size() < 10'000) texts.push_back(schema.source);
    for (const Text& text : schema.texts) texts.push_back(text.text.substr(0, 2'000));
    if (texts.size() > 8'000) break;
  }
  const LargeVocabulary vocabulary(texts, flags.quick ? 8'000 : kVocabSize);
  std::FILE* list = list_path.empty() ? nullptr : std::fopen(list_path.c_str(), "w");
  Bench bench(vocabulary, list);
  for (const Schema& schema : schemas) bench.Run(schema);
  bench.Print(flags, command);
  if (list != nullptr) std::fclose(list);
  return 0;
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) { return foredraft::Main(argc, argv); }
