#include "server/api/http/model_pages.h"

#include <nlohmann/json.hpp>

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;

std::string Dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

json ModelOf(const ModelCard& card, int64_t created) {
  return {{"id", card.name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "foredraft"},
          {"max_model_len", card.max_seq_len},
          {"max_draft_len", card.max_draft_len}};
}

}  // namespace

std::string ModelsBody(const ModelCard& card, int64_t created) {
  return Dump({{"object", "list"}, {"data", json::array({ModelOf(card, created)})}});
}

std::string ModelBody(const ModelCard& card, int64_t created) { return Dump(ModelOf(card, created)); }

}  // namespace foredraft
