#ifndef FOREDRAFT_TESTS_BENCH_THREAD_TIMES_H_
#define FOREDRAFT_TESTS_BENCH_THREAD_TIMES_H_

// CPU seconds of the threads of this process.

#include <map>
#include <string>

namespace foredraft {

// By thread name; the sum if several threads have it. Threads that have ended are not included.
std::map<std::string, double> ThreadSeconds();

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_THREAD_TIMES_H_
