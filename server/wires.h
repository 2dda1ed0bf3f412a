#pragma once

// The protocols that clients and operators speak: the services of gRPC, and those over HTTP with the chat
// page, over one Admission. The listeners of Frontend carry them. This is a header of its own, because those
// of gRPC's services take seconds to compile.

#include <grpcpp/impl/service_type.h>

#include <functional>
#include <string>
#include <vector>

#include "server/api/access.h"
#include "server/api/admin_hooks.h"
#include "server/api/admission.h"
#include "server/api/anthropic/messages_wire.h"
#include "server/api/foredraft_v1/admin_service.h"
#include "server/api/foredraft_v1/generation_service.h"
#include "server/api/http/http_router.h"
#include "server/api/openai/openai_wire.h"
#include "server/api/openai/token_pages.h"
#include "server/api/responses/responses_wire.h"
#include "server/api/vllm_engine/vllm_engine_service.h"
#include "server/frontend_options.h"
#include "server/page/chat_page.h"

namespace foredraft {

// What the wires use of the frontend, which outlives them.
struct WireContext {
  const Access& everyone;
  const Access& tokens;  // lets everyone in, too, without server.auth.tokens_file
  Health& health;
  Metrics& metrics;
  std::function<ServerLoad()> load;
};

struct Wires {
  Wires(const FrontendOptions& options, const AdminHooks& hooks, const WireContext& context);

  // The services of each listener.
  std::vector<grpc::Service*> api_services();
  std::vector<grpc::Service*> admin_services() { return {&admin}; }
  std::vector<grpc::Service*> gateway_services() { return {&vllm_engine}; }

  const bool has_gateway;
  Admission admission;
  GenerationService generation;
  AdminService api_admin;  // on the API's listener: reads only
  AdminService admin;
  VllmEngineService vllm_engine;  // on the API's listener if there is none for gateways
  OpenAiWire chat;
  OpenAiWire completions;
  ResponsesWire responses;
  ResponsesWire input_tokens;
  MessagesWire messages;
  MessagesWire count_tokens;
  TokenizePage tokenize;
  DetokenizePage detokenize;
  HttpRouter http;
  ChatPage page;
};

// Whether server.admin_address has a listener, and whether it is a unix socket.
bool HasAdminListener(const ServerConfig& config);
bool IsUnixAddress(const std::string& address);

}  // namespace foredraft
