#ifndef FOREDRAFT_TESTS_BENCH_THREAD_TIMES_H_
#define FOREDRAFT_TESTS_BENCH_THREAD_TIMES_H_

// Seconds of CPU that this process has used, as Linux counts them.

#include <map>
#include <string>

namespace foredraft {

// By thread name, threads of one name together; those that have ended are not in it.
std::map<std::string, double> ThreadSeconds();

// Of all threads, those that have ended too.
double ProcessSeconds();

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_THREAD_TIMES_H_
