#include "server/api/http/model_pages.h"

#include <nlohmann/json.hpp>

#include "absl/time/time.h"

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;

std::string Dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

json ModelOf(const ModelCard& card, int64_t created) {
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(created), absl::UTCTimeZone());
  return {{"id", card.name},
          {"object", "model"},
          {"created", created},
          {"type", "model"},
          {"display_name", card.name},
          {"created_at", time},
          {"owned_by", "foredraft"},
          {"max_model_len", card.max_seq_len},
          {"max_draft_len", card.max_draft_len}};
}

}  // namespace

std::string ModelsBody(const ModelCard& card, int64_t created) {
  return Dump({{"object", "list"},
               {"data", json::array({ModelOf(card, created)})},
               {"has_more", false},
               {"first_id", card.name},
               {"last_id", card.name}});
}

std::string ModelBody(const ModelCard& card, int64_t created) { return Dump(ModelOf(card, created)); }

std::string VersionBody(const ModelCard& card) { return Dump({{"version", card.version}}); }

}  // namespace foredraft
