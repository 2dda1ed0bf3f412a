#include "client/token_texts.h"

#include <chrono>

namespace foredraft {

std::map<int32_t, std::string> TokenTexts(v1::GenerationService::Stub& stub, const std::set<int32_t>& ids) {
  constexpr std::chrono::seconds kTimeout(10);
  std::map<int32_t, std::string> texts;
  for (const int32_t id : ids) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    v1::DetokenizeRequest request;
    request.add_token_ids(id);
    v1::DetokenizeResponse response;
    if (!stub.Detokenize(&context, request, &response).ok()) break;
    texts[id] = response.text();
  }
  return texts;
}

}  // namespace foredraft
