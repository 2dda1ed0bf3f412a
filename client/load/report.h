#pragma once

// What `bench` prints about one run: for people and as JSON.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/load/load_run.h"
#include "client/load/run_stats.h"
#include "foredraft/v1/generation.pb.h"

namespace foredraft {

struct MeasuredServer {
  std::string address;
  v1::GetModelResponse model;
};

// The requested load and the daemon that it goes to.
struct BenchSetup {
  MeasuredServer server;
  int connections = 1;
  std::string workload;  // its description
  int warmup = 0;        // requests sent before, not counted
  LoadOptions load;
};

// The keys of the JSON do not change.
std::string TextReport(const BenchSetup& setup, const RunStats& run);
std::string JsonReport(const BenchSetup& setup, const RunStats& run);

// Rows that say what went wrong and what to know; empty if there is nothing.
std::string NotesText(const RunStats& run);

// The parts that other reports share.
std::string TextRow(const std::string& heading, const std::string& text);
std::string ServerText(const MeasuredServer& server);
std::string SetupText(const BenchSetup& setup);
nlohmann::ordered_json ServerJson(const MeasuredServer& server);
nlohmann::ordered_json SetupJson(const BenchSetup& setup);
nlohmann::ordered_json RunJson(const RunStats& run);
nlohmann::ordered_json CategoriesJson(const std::vector<CategoryStats>& categories);
double RoundedForJson(double value);

}  // namespace foredraft
