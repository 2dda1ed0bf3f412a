#ifndef FOREDRAFT_CLIENT_LOAD_REPORT_H_
#define FOREDRAFT_CLIENT_LOAD_REPORT_H_

// A run's figures, for people and for programs.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "client/load/load_run.h"
#include "client/load/statistics.h"
#include "foredraft/v1/generation.pb.h"

namespace foredraft {

// What was asked of whom.
struct BenchSetup {
  std::string address;
  v1::GetModelResponse model;
  int connections = 1;
  std::string workload;  // its description
  int warmup = 0;        // requests before, not counted
  LoadOptions load;
};

std::string TextHeader(const BenchSetup& setup);  // server, load and requests
std::string TextReport(const BenchSetup& setup, const RunFigures& figures);

// Keys are stable; a unit ends the key of what has one.
nlohmann::ordered_json SetupJson(const BenchSetup& setup);
nlohmann::ordered_json FiguresJson(const RunFigures& figures);
std::string JsonReport(const BenchSetup& setup, const RunFigures& figures);

// 1037.4 -> "1,037.4"
std::string GroupedDecimal(double value, int decimals);

}  // namespace foredraft

#endif  // FOREDRAFT_CLIENT_LOAD_REPORT_H_
