#include "server/api/grpc_context.h"

#include "net/guard/peer_name.h"
#include "server/api/request_id.h"

namespace foredraft {

std::optional<std::chrono::system_clock::time_point> GrpcContext::deadline() const {
  const std::chrono::system_clock::time_point deadline = context_->deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return std::nullopt;
  return deadline;
}

void GrpcContext::SetRequestId(const std::string& id) {
  context_->AddTrailingMetadata(kRequestIdMetadata, id);
}

std::string GrpcContext::PeerOf(const grpc::ServerContextBase& context) { return ShownPeer(context.peer()); }

std::string GrpcContext::AuthorizationOf(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  return found == metadata.end() ? std::string() : std::string(found->second.data(), found->second.size());
}

}  // namespace foredraft
