// The times of a replayed graph's nodes, by CUPTI: loaded into a process by CUDA_INJECTION64_PATH, it writes
// a line per node that ran to the file that FOREDRAFT_STEP_TRACE names, which tests/gpu/node_times.py reads:
//
//   graph launch node stream start end name
//
// `graph` and `node` are CUPTI's ids, `launch` tells replays apart, times are ns of the GPU. Work outside of
// graphs has no line. While it runs, CUPTI records every node, which makes steps slower: gaps are upper
// bounds.

#include <cupti.h>
#include <cxxabi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;

std::FILE* file = nullptr;
std::mutex mutex;

// The name without arguments and without the project's namespaces.
std::string ShortName(const char* mangled) {
  int status = 0;
  char* const demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : mangled;
  std::free(demangled);
  for (const char* part : {"foredraft::", "cuda::", "(anonymous namespace)::", "void "}) {
    for (size_t at; (at = name.find(part)) != std::string::npos;)
      name.erase(at, std::char_traits<char>::length(part));
  }
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    depth += name[i] == '<' ? 1 : name[i] == '>' ? -1 : 0;
    if (name[i] == '(' && depth == 0) name.resize(i);
  }
  return name;
}

const std::string& NameOf(const char* mangled) {
  static auto* const names = new std::map<std::string, std::string>;
  std::string& name = (*names)[mangled];
  if (name.empty()) name = ShortName(mangled);
  return name;
}

// `record`: a kernel, a copy or a memset, whose members have equal names.
template <class Record>
void Write(const CUpti_Activity* activity, const char* name) {
  const auto& record = *reinterpret_cast<const Record*>(activity);
  if (record.graphNodeId == 0) return;
  std::fprintf(file, "%u %u %llu %u %llu %llu %s\n", record.graphId, record.correlationId,
               static_cast<unsigned long long>(record.graphNodeId), record.streamId,
               static_cast<unsigned long long>(record.start), static_cast<unsigned long long>(record.end),
               name);
}

void WriteRecord(const CUpti_Activity* activity) {
  switch (activity->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return Write<CUpti_ActivityKernel10>(
          activity, NameOf(reinterpret_cast<const CUpti_ActivityKernel10*>(activity)->name).c_str());
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return Write<CUpti_ActivityMemcpy6>(activity, "copy");
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return Write<CUpti_ActivityMemset4>(activity, "memset");
    default:
      return;
  }
}

void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = *buffer != nullptr ? kBufferBytes : 0;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI TakeBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  CUpti_Activity* activity = nullptr;
  while (cuptiActivityGetNextRecord(buffer, bytes, &activity) == CUPTI_SUCCESS) WriteRecord(activity);
  std::free(buffer);
}

void Finish() {
  const CUptiResult result = cuptiActivityFlushAll(1);
  size_t dropped = 0;
  cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped);
  if (result != CUPTI_SUCCESS || dropped > 0) {
    std::fprintf(stderr, "step_trace: flush %d, %zu records dropped\n", static_cast<int>(result), dropped);
  }
  std::fclose(file);
}

bool Start() {
  const char* const path = std::getenv("FOREDRAFT_STEP_TRACE");
  if (path == nullptr || (file = std::fopen(path, "w")) == nullptr) {
    std::fprintf(stderr, "step_trace: FOREDRAFT_STEP_TRACE: no file to write\n");
    return false;
  }
  CUptiResult result = cuptiActivityRegisterCallbacks(GiveBuffer, TakeBuffer);
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    if (result == CUPTI_SUCCESS) result = cuptiActivityEnable(kind);
  }
  if (result == CUPTI_SUCCESS) {
    std::atexit(Finish);
    return true;
  }
  const char* why = "";
  cuptiGetResultString(result, &why);
  std::fprintf(stderr, "step_trace: %s\n", why);
  return false;
}

}  // namespace

// Called by the CUDA driver before the process's first call takes effect.
extern "C" [[gnu::visibility("default")]] int InitializeInjection() { return Start() ? 1 : 0; }
