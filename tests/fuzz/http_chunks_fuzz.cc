// A body in chunks, behind a head that is right: as http_request_fuzz, without a fuzzer's having to find a
// head.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/http_pieces.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  foredraft::CheckEverySplit(head + std::string(reinterpret_cast<const char*>(data) + 1, size - 1), data[0]);
  return 0;
}
