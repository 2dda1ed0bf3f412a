#include "client/tool_file.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;  // keys keep their order, which the model sees

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status ReadTool(const Json& listed, const std::string& name, v1::Tool& tool) {
  const Json& function = listed.is_object() && listed.contains("function") ? listed["function"] : listed;
  if (!function.is_object()) return Refuse(name, ": allowed an object");
  for (const auto& [key, value] : function.items()) {
    if (key == "parameters" && value.is_object()) {
      tool.set_parameters(value.dump());
    } else if (key == "strict" && value.is_boolean()) {
      tool.set_strict(value.get<bool>());
    } else if (key == "name" && value.is_string()) {
      tool.set_name(value.get<std::string>());
    } else if (key == "description" && value.is_string()) {
      tool.set_description(value.get<std::string>());
    } else if (!value.is_null()) {
      return Refuse(name, ".", key, ": allowed name, description (strings), parameters (an object), strict");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadToolFile(const std::string& path, v1::Chat& chat) {
  std::ifstream file(path, std::ios::binary);
  if (!file.good()) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const Json list = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array()) return Refuse(path, ": allowed a JSON list of tools");
  for (size_t i = 0; i < list.size(); ++i) {
    v1::Tool tool;
    RETURN_IF_ERROR(ReadTool(list[i], absl::StrCat(path, ": tool ", i), tool));
    *chat.add_tools() = std::move(tool);
  }
  return absl::OkStatus();
}

}  // namespace foredraft
