#include "tests/bench/copy_communicator.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

constexpr float kDecisive = 16.0f;  // above any score, which is in (0, 1)

void Bias(Device& device, Stream& stream, const MoeWeights& moe, const std::vector<float>& bias) {
  device.CopyToDevice(stream, const_cast<float*>(moe.e_score_correction_bias), bias.data(),
                      bias.size() * sizeof(float));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CopyCommunicator>> CopyCommunicator::Create(Device& device, int size,
                                                                           int expert_count,
                                                                           int max_choices) {
  const std::vector<int32_t> choices(static_cast<size_t>(size) * max_choices, expert_count - 1);
  ASSIGN_OR_RETURN(int32_t* const memory, device.AllocateArray<int32_t>(choices.size()));
  const auto stream = device.CreateStream();
  device.CopyToDevice(*stream, memory, choices.data(), choices.size() * sizeof(int32_t));
  stream->Synchronize();
  return std::unique_ptr<CopyCommunicator>(new CopyCommunicator(device.ops(), size, memory));
}

// One launch: copies the rows of a matrix with row stride 0.
void CopyCommunicator::CopyToAll(Stream& stream, void* out, const void* in, int count, int64_t bytes) {
  CHECK_EQ(bytes % static_cast<int64_t>(sizeof(float)), 0);
  if (bytes == 0 || count == 0) return;
  const int32_t width = static_cast<int32_t>(bytes / static_cast<int64_t>(sizeof(float)));
  ops_.copy_rows(stream, {.out = Dense(static_cast<float*>(out), count, width),
                          .x = {static_cast<const float*>(in), count, width, 0},
                          .rows = count});
}

void CopyCommunicator::AllGather(Stream& stream, const AllGatherParams& params) {
  const int32_t rows = params.rows[0];
  for (int rank = 1; rank < size_; ++rank) CHECK_EQ(params.rows[rank], rows);
  for (size_t i = 0; i < params.parts.size(); ++i) {
    const GatherPart& part = params.parts[i];
    const int64_t bytes = rows * part.row_bytes;
    if (i == 1) {
      CopyToAll(stream, part.out, part.in, 1, bytes);
      CopyToAll(stream, static_cast<std::byte*>(part.out) + bytes, others_choices_, size_ - 1, bytes);
    } else {
      CopyToAll(stream, part.out, part.in, size_, bytes);
    }
  }
}

void CopyCommunicator::AllToAll(Stream& stream, const AllToAllParams& params) {
  CopyToAll(stream, params.out, params.in, size_, params.rows[0] * params.row_bytes);
}

absl::Status CopyCommunicator::Await(Stream& stream) {
  stream.Synchronize();
  return absl::OkStatus();
}

void ChooseOwnExperts(Device& device, const ModelWeights& weights, int expert_count, int own_count) {
  std::vector<float> bias(expert_count, 0.0f);
  std::fill_n(bias.begin(), own_count, kDecisive);
  const auto stream = device.CreateStream();
  for (const LayerWeights& layer : weights.layers) {
    if (layer.is_moe) Bias(device, *stream, layer.moe, bias);
  }
  for (const MtpModuleWeights& module : weights.mtp_modules) {
    if (module.layer.is_moe) Bias(device, *stream, module.layer.moe, bias);
  }
  stream->Synchronize();
}

}  // namespace foredraft
