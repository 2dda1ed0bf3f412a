#include "server/wires.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

// What the API's listener says to a call that only the admin listener takes.
std::string OnAdminListenerOnly(const ServerConfig& config) {
  return HasAdminListener(config)
             ? absl::StrCat("not on this listener: call it on server.admin_address, ", config.admin_address)
             : "not on this listener, and server.admin_address is none: send SIGTERM to drain, SIGHUP to "
               "reload";
}

HttpRouterOptions RouterOptions(const FrontendOptions& options, const Metrics& metrics) {
  HttpRouterOptions router{.max_pending_tokens = options.max_pending_tokens,
                           .model_aliases = options.server.model_aliases,
                           .metrics_address = options.server.metrics_address};
  if (options.metrics_on_http) router.metrics = [&metrics] { return MetricsPage(metrics); };
  return router;
}

}  // namespace

Wires::Wires(const FrontendOptions& options, const AdminHooks& hooks, const WireContext& context)
    : has_gateway(!options.server.gateway_address.empty()),
      admission({.request_timeout_s = options.request_timeout_s,
                 .max_queue_share = options.server.max_queue_share,
                 .max_queue_size = options.max_queue_size,
                 .tokenizer_threads = options.tokenizer_threads,
                 .reuse_by_token = options.reuse_by_token},
                context.health, context.metrics),
      generation(admission, context.tokens, options.max_pending_tokens),
      api_admin(hooks, context.load, context.tokens, OnAdminListenerOnly(options.server)),
      // The mode of a unix socket says who may connect to it.
      admin(hooks, context.load,
            IsUnixAddress(options.server.admin_address) ? context.everyone : context.tokens, ""),
      // Gateways send no tokens; their listener is for a gateway on the same host.
      vllm_engine(admission, has_gateway ? context.everyone : context.tokens,
                  {.load = context.load,
                   .generated_tokens = [&metrics = context.metrics] { return metrics.generated_tokens(); }},
                  options.max_pending_tokens),
      chat(OpenAiKind::kChat),
      completions(OpenAiKind::kCompletion),
      responses(ResponsesWire::Path::kResponses),
      input_tokens(ResponsesWire::Path::kInputTokens),
      messages(MessagesWire::Path::kMessages),
      count_tokens(MessagesWire::Path::kCountTokens),
      http({&chat, &completions, &responses, &input_tokens, &messages, &count_tokens, &tokenize, &detokenize},
           admission, context.tokens, context.health, RouterOptions(options, context.metrics)),
      page(http) {
  http.SetRefusesUnknown(options.server.unknown_fields == UnknownFields::kRefuse);
}

std::vector<grpc::Service*> Wires::api_services() {
  std::vector<grpc::Service*> services = {&generation, &api_admin};
  if (!has_gateway) services.push_back(&vllm_engine);
  return services;
}

bool HasAdminListener(const ServerConfig& config) {
  return !config.admin_address.empty() && config.admin_address != kNoListener;
}

bool IsUnixAddress(const std::string& address) { return absl::StartsWith(address, "unix:"); }

}  // namespace foredraft
