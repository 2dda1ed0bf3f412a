#pragma once

// Options that `generate` and `bench` share.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "client/connection/client_connection.h"
#include "foredraft/v1/generation.pb.h"

namespace foredraft {

// Adds --server, --tls-ca, --tls-cert, --tls-key and --token-file, which set `server`. `group` is the heading
// in --help.
void AddServerOptions(CLI::App& command, ServerAddress& server, const std::string& group = "Options");

// Options that are absent stay unset in the request, so that the checkpoint's generation_config.json applies.
// The seed is not here: `generate` has one for its request, `bench` derives one per request.
struct SamplingOptions {
  std::optional<int32_t> top_k;
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;

  void Add(CLI::App& command, const std::string& group = "Options");
  void ApplyTo(v1::SamplingParams& sampling) const;
};

}  // namespace foredraft
