#ifndef FOREDRAFT_CLIENT_MEASURE_CPU_TIME_H_
#define FOREDRAFT_CLIENT_MEASURE_CPU_TIME_H_

namespace foredraft {

// User and system time of this process so far, threads that have ended included.
double ProcessCpuSeconds();

}  // namespace foredraft

#endif  // FOREDRAFT_CLIENT_MEASURE_CPU_TIME_H_
