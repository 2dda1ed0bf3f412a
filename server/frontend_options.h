#pragma once

#include <chrono>
#include <optional>

#include "config/config.h"
#include "server/output/metrics.h"
#include "server/output/output_thread.h"

namespace foredraft {

struct FrontendOptions {
  ServerConfig server;  // metrics_address empty = no page
  // True if admin_address is the default. Where another process listens on it, this daemon then serves
  // without an admin listener; a configured address would be an error.
  bool admin_is_default = false;
  int reserved_descriptors = 0;  // of the process, for connections of other ports
  MetricsOptions metrics;
  bool metrics_on_http = false;  // metrics.on_http
  int request_timeout_s = 600;
  int max_queue_size = 1024;
  int tokenizer_threads = 1;  // of AdmissionLimits, as reuse_by_token
  bool reuse_by_token = false;
  std::optional<ConstraintsConfig> constraints = ConstraintsConfig{};  // unset: no structured output
  // /healthz fails once the scheduler or the output thread has not turned for this long.
  std::chrono::seconds longest_turn = std::chrono::seconds(90);
  // How often the daemon dials its own API listener, and looks whether tokens and certificates have changed.
  std::chrono::milliseconds probe_period = std::chrono::seconds(5);
  std::chrono::milliseconds file_period = std::chrono::seconds(2);
  int max_pending_tokens = 1024;  // unread by a stream's client; beyond it the stream is ended
  OutputThreadOptions output;
};

}  // namespace foredraft
