#pragma once

// Translation between the messages of foredraft.v1 and the server's own structs. Pure; nothing is checked
// here.

#include <optional>
#include <vector>

#include "foredraft/v1/admin.pb.h"
#include "foredraft/v1/generation.pb.h"
#include "server/api/admin_hooks.h"
#include "server/api/client_request.h"
#include "server/api/generation_call.h"
#include "server/api/model_card.h"
#include "server/api/request_validator.h"
#include "server/output/response_sink.h"

namespace foredraft {

ClientRequest ReadRequest(const v1::GenerateRequest& wire);
PromptInput ReadInput(const v1::TokenizeRequest& wire);
ChatChoices ReadChoices(const v1::TokenizeRequest& wire);
ChatTools ReadTools(const v1::Chat& wire);

// Joins the deltas of calls into whole calls. Owner: one response; not thread-safe.
class CallJoiner {
 public:
  // The calls that `deltas` complete, in order.
  std::vector<ToolCall> Add(const std::vector<CallDelta>& deltas);
  // Called after the last deltas: the call that ended early, if any.
  std::vector<ToolCall> TakeRest();

 private:
  std::optional<ToolCall> open_;  // the last call, while it is not complete
};

// `chunk` is new, or the call's previous chunk: every field that a chunk other than the last can have is
// overwritten.
void FillChunk(const OutputDelta& delta, const ResponseLabels& labels, CallJoiner& calls,
               v1::GenerateChunk* chunk);
// Adds the fields of the last chunk.
void FillEnd(const RequestStats& stats, const OutputEnd& end, const ResponseLabels& labels, CallJoiner& calls,
             v1::GenerateChunk* chunk);
void FillResponse(const OutputDelta& whole, const OutputEnd& end, const ResponseLabels& labels,
                  v1::GenerateResponse* response);
void FillModel(const ModelCard& card, const RequestValidator& validator, v1::GetModelResponse* response);
void FillLoad(const ServerLoad& load, v1::GetLoadResponse* response);

}  // namespace foredraft
