#include "server/api/grpc_context.h"

#include "net/guard/peer_name.h"
#include "server/api/request_id.h"
#include "server/output/trace_context.h"

namespace foredraft {
namespace {

// The first value of the metadata; empty without one.
std::string MetadataOf(const grpc::ServerContextBase& context, const char* name) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(name);
  return found == metadata.end() ? std::string() : std::string(found->second.data(), found->second.size());
}

}  // namespace

std::optional<std::chrono::system_clock::time_point> GrpcContext::deadline() const {
  const std::chrono::system_clock::time_point deadline = context_->deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return std::nullopt;
  return deadline;
}

void GrpcContext::SetRequestId(const std::string& id) {
  context_->AddTrailingMetadata(kRequestIdMetadata, id);
}

std::string GrpcContext::traceparent() const { return MetadataOf(*context_, kTraceParentHeader); }

void GrpcContext::SetTraceParent(const std::string& header) {
  context_->AddTrailingMetadata(kTraceParentHeader, header);
}

void GrpcContext::SetIgnored(const FieldNotes& notes) {
  context_->AddTrailingMetadata(kIgnoredHeader, notes.Header());
}

std::string GrpcContext::PeerOf(const grpc::ServerContextBase& context) { return ShownPeer(context.peer()); }

std::string GrpcContext::AuthorizationOf(const grpc::ServerContextBase& context) {
  return MetadataOf(context, "authorization");
}

}  // namespace foredraft
