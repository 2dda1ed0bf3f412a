#include "engine/comm/communicator_factory.h"

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "engine/comm/cpu_communicator.h"
#include "engine/comm/solo_communicator.h"

#ifdef FOREDRAFT_HAS_CUDA
#include "engine/comm/nccl_communicator.h"
#endif

namespace foredraft {

absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(const CommunicatorOptions& options,
                                                                 Device& device, RendezvousStore* store) {
  CHECK(options.size == 1 || options.size == 2 || options.size == 4 || options.size == 8) << options.size;
  CHECK(options.rank >= 0 && options.rank < options.size) << "rank " << options.rank;
  if (options.size == 1) return std::make_unique<SoloCommunicator>(device.ops());
  CHECK(store != nullptr);
  CHECK_GT(options.step_timeout.count(), 0);
  if (options.backend == Backend::kCpu) return CpuCommunicator::Create(options, *store);
#ifdef FOREDRAFT_HAS_CUDA
  CHECK(options.backend == Backend::kCuda);
  return NcclCommunicator::Create(options, device, *store);
#else
  return absl::UnimplementedError(
      absl::StrFormat("backend: %s: this binary was built without CUDA and joins only ranks of backend cpu",
                      NameOf(options.backend)));
#endif
}

}  // namespace foredraft
