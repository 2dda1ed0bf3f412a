#pragma once

// Translation between the messages of vllm.grpc.engine and the server's own structs. Pure.

#include <string>

#include "absl/status/statusor.h"
#include "server/api/admin_hooks.h"
#include "server/api/client_request.h"
#include "server/api/model_card.h"
#include "server/output/response_sink.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace foredraft {

namespace vllm_wire = ::vllm::grpc::engine;

// INVALID_ARGUMENT names a field that foredraft does not support, and its value; the validator checks ranges.
absl::StatusOr<ClientRequest> ReadRequest(const vllm_wire::GenerateRequest& wire);

// `delta` has at least one token.
void FillChunk(const OutputDelta& delta, vllm_wire::GenerateStreamChunk* chunk);
// `whole` is the request's whole output.
void FillComplete(const OutputDelta& whole, const OutputEnd& end, vllm_wire::GenerateComplete* complete);
void FillModelInfo(const ModelCard& card, vllm_wire::GetModelInfoResponse* response);
// Leaves timestamp and throughput unset.
void FillLoads(const ServerLoad& load, const ModelCard& card, vllm_wire::GetLoadsResponse* response);

}  // namespace foredraft
