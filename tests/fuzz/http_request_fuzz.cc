// Bytes of a connection, heads and bodies: the same requests, and the same refusal, in whatever pieces they
// come, and no reader holds more than the limits. The first byte chooses pieces and cuts.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/http_pieces.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  foredraft::CheckEverySplit(std::string(reinterpret_cast<const char*>(data) + 1, size - 1), data[0]);
  return 0;
}
