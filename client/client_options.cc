#include "client/client_options.h"

namespace foredraft {

void AddServerOptions(CLI::App& command, ServerAddress& server, const std::string& group) {
  command.add_option("--server", server.address, "address of the daemon")
      ->capture_default_str()
      ->type_name("A")
      ->group(group);
  CLI::Option* ca = command
                        .add_option("--tls-ca", server.tls_ca,
                                    "PEM file with the CA of the daemon's certificate; turns on TLS")
                        ->type_name("FILE")
                        ->group(group);
  CLI::Option* cert =
      command.add_option("--tls-cert", server.tls_cert, "PEM file of the client's certificate")
          ->type_name("FILE")
          ->group(group);
  CLI::Option* key = command.add_option("--tls-key", server.tls_key, "PEM file of the client's key")
                         ->type_name("FILE")
                         ->group(group);
  command
      .add_option("--token-file", server.token_file,
                  "file with the token to send, in its first line [environment FOREDRAFT_TOKEN]")
      ->type_name("FILE")
      ->group(group);
  cert->needs(key, ca);
  key->needs(cert);
}

void SamplingOptions::Add(CLI::App& command, const std::string& group) {
  command.add_option("--temperature", temperature, "0 = greedy")->group(group);
  command.add_option("--top-p", top_p, "1 = off")->group(group);
  command.add_option("--top-k", top_k, "0 = off")->group(group);
  command.add_option("--min-p", min_p, "0 = off")->group(group);
  command
      .add_option("--repetition-penalty", repetition_penalty,
                  "1 = off; applies to tokens of prompt and output")
      ->group(group);
  command.add_option("--presence-penalty", presence_penalty, "0 = off; applies to tokens of the output")
      ->group(group);
  command.add_option("--frequency-penalty", frequency_penalty, "0 = off; applies to tokens of the output")
      ->group(group);
}

void SamplingOptions::ApplyTo(v1::SamplingParams& sampling) const {
  if (temperature) sampling.set_temperature(*temperature);
  if (top_p) sampling.set_top_p(*top_p);
  if (top_k) sampling.set_top_k(*top_k);
  if (min_p) sampling.set_min_p(*min_p);
  if (repetition_penalty) sampling.set_repetition_penalty(*repetition_penalty);
  if (presence_penalty) sampling.set_presence_penalty(*presence_penalty);
  if (frequency_penalty) sampling.set_frequency_penalty(*frequency_penalty);
}

}  // namespace foredraft
