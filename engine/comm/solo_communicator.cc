#include "engine/comm/solo_communicator.h"

#include "base/check.h"

namespace foredraft {

// Copies the rows as floats: copy_rows moves bits unchanged, and every backend has it.
void SoloCommunicator::CopyRows(Stream& stream, void* out, const void* in, int32_t rows, int64_t row_bytes) {
  if (out == in || rows == 0 || status_.failed()) return;
  CHECK_EQ(row_bytes % static_cast<int64_t>(sizeof(float)), 0);
  const int32_t width = static_cast<int32_t>(row_bytes / sizeof(float));
  ops_.copy_rows(stream, {.out = Dense(static_cast<float*>(out), rows, width),
                          .x = Dense(static_cast<const float*>(in), rows, width),
                          .rows = rows});
}

void SoloCommunicator::AllGather(Stream& stream, const AllGatherParams& params) {
  for (const GatherPart& part : params.parts) {
    if (part.row_bytes > 0) CopyRows(stream, part.out, part.in, params.rows[0], part.row_bytes);
  }
}

void SoloCommunicator::AllToAll(Stream& stream, const AllToAllParams& params) {
  CopyRows(stream, params.out, params.in, params.rows[0], params.row_bytes);
}

absl::Status SoloCommunicator::Await(Stream& stream) {
  stream.Synchronize();
  return status();
}

absl::Status SoloCommunicator::Broadcast(std::span<std::byte>, int root) {
  CHECK_EQ(root, 0);
  return status();
}

}  // namespace foredraft
