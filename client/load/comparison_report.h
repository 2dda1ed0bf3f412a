#ifndef FOREDRAFT_CLIENT_LOAD_COMPARISON_REPORT_H_
#define FOREDRAFT_CLIENT_LOAD_COMPARISON_REPORT_H_

// A comparison, for people and for programs.

#include <string>

#include "client/load/comparison.h"
#include "client/load/report.h"
#include "client/load/workload.h"

namespace foredraft {

// The comparison has at least one round. `workload` names the requests whose tokens differ.
std::string TextReport(const BenchSetup& setup, const Comparison& comparison, const Workload& workload);
std::string JsonReport(const BenchSetup& setup, const Comparison& comparison, const Workload& workload);

}  // namespace foredraft

#endif  // FOREDRAFT_CLIENT_LOAD_COMPARISON_REPORT_H_
