#pragma once

// A client's connection to a daemon: address, TLS, token, and the error when a call fails.

#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foredraft {

struct ServerAddress {
  std::string address = "127.0.0.1:50051";
  std::string tls_ca;             // PEM file with the CA of the daemon's certificate; empty = no TLS
  std::string tls_cert, tls_key;  // PEM files of the client's own certificate; both or none
  std::string token_file;         // empty = the environment's FOREDRAFT_TOKEN, or no token
};

// The first line of the token's file, else FOREDRAFT_TOKEN; empty where neither is given.
absl::StatusOr<std::string> ReadToken(const ServerAddress& server);

// A channel whose calls carry the token, if there is one. The error names the file that cannot be read, or
// the URL that was given as an address.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const ServerAddress& server,
                                                           const grpc::ChannelArguments& arguments = {});

// "127.0.0.1:50051: UNAVAILABLE <what the daemon or gRPC says>", with the call's code. If no daemon listens,
// the text asks whether one runs.
absl::Status CallError(const std::string& address, const grpc::Status& status);

// Returns `status` if a daemon answered or nothing listens. If something else listens at `address`, the error
// says what: the page of metrics, OpenAI's API. Finds out over HTTP, for 2 s at most.
absl::Status WithListener(const absl::Status& status, const std::string& address);

}  // namespace foredraft
