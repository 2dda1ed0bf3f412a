// tests/cuda_on_host/include/nccl.h has the values of the real nccl.h: compiled, never run.

#include <nccl.h>

namespace foredraft::on_host {
#include "tests/cuda_on_host/include/cuda_on_host/nccl_api.h"
}

namespace foredraft {
namespace {

static_assert(sizeof(on_host::ncclUniqueId) == sizeof(ncclUniqueId));
static_assert(int{on_host::ncclSuccess} == ncclSuccess);
static_assert(int{on_host::ncclUnhandledCudaError} == ncclUnhandledCudaError);
static_assert(int{on_host::ncclSystemError} == ncclSystemError);
static_assert(int{on_host::ncclInternalError} == ncclInternalError);
static_assert(int{on_host::ncclInvalidArgument} == ncclInvalidArgument);
static_assert(int{on_host::ncclInvalidUsage} == ncclInvalidUsage);
static_assert(int{on_host::ncclRemoteError} == ncclRemoteError);
static_assert(int{on_host::ncclInProgress} == ncclInProgress);
static_assert(int{on_host::ncclSum} == ncclSum && int{on_host::ncclMax} == ncclMax &&
              int{on_host::ncclMin} == ncclMin);
static_assert(int{on_host::ncclInt8} == ncclInt8 && int{on_host::ncclInt64} == ncclInt64);
static_assert(NCCL_REVOKE_DEFAULT == 0);

}  // namespace
}  // namespace foredraft
