#pragma once

// Translation between the messages of foredraft.v1 and the server's own structs. Pure; nothing is checked
// here.

#include "foredraft/v1/admin.pb.h"
#include "foredraft/v1/generation.pb.h"
#include "server/api/admin_hooks.h"
#include "server/api/client_request.h"
#include "server/api/generation_call.h"
#include "server/api/model_card.h"
#include "server/output/response_sink.h"

namespace foredraft {

ClientRequest ReadRequest(const v1::GenerateRequest& wire);
PromptInput ReadInput(const v1::TokenizeRequest& wire);

// `chunk` is new, or the same call's chunk before this one: every field that a chunk before the last can have
// is overwritten.
void FillChunk(const OutputDelta& delta, const ResponseLabels& labels, v1::GenerateChunk* chunk);
// Adds the fields of the last chunk.
void FillEnd(const RequestStats& stats, const OutputEnd& end, const ResponseLabels& labels,
             v1::GenerateChunk* chunk);
void FillResponse(const OutputDelta& whole, const OutputEnd& end, const ResponseLabels& labels,
                  v1::GenerateResponse* response);
void FillModel(const ModelCard& card, const ThinkingIds& thinking, v1::GetModelResponse* response);
void FillLoad(const ServerLoad& load, v1::GetLoadResponse* response);

}  // namespace foredraft
