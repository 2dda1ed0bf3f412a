#ifndef FOREDRAFT_SERVER_BENCH_COMPARISON_REPORT_H_
#define FOREDRAFT_SERVER_BENCH_COMPARISON_REPORT_H_

// A comparison, for people and for programs.

#include <string>

#include "server/bench/comparison.h"
#include "server/bench/report.h"
#include "server/bench/workload.h"

namespace foredraft {

// The comparison has at least one round. `workload` names the requests whose tokens differ.
std::string TextReport(const BenchSetup& setup, const Comparison& comparison, const Workload& workload);
std::string JsonReport(const BenchSetup& setup, const Comparison& comparison, const Workload& workload);

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_BENCH_COMPARISON_REPORT_H_
