#include "tests/fuzz/proto_input.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cstdint>

namespace foredraft {
namespace {

using google::protobuf::Message;

// Most inputs that are cut short are no text format. That is no news.
class Silent : public google::protobuf::io::ErrorCollector {
 public:
#if GOOGLE_PROTOBUF_VERSION >= 4022000
  void RecordError(int, google::protobuf::io::ColumnNumber, absl::string_view) override {}
#else
  void AddError(int, google::protobuf::io::ColumnNumber, const std::string&) override {}
#endif
};

}  // namespace

std::unique_ptr<Message> ParseProtoInput(std::string_view input) {
  const size_t end = input.find('\n');
  if (end == std::string_view::npos) return nullptr;
  for (const Message* type : FuzzedMessages()) {
    if (type->GetDescriptor()->full_name() != input.substr(0, end)) continue;
    std::unique_ptr<Message> message(type->New());
    Silent silent;
    google::protobuf::TextFormat::Parser parser;
    parser.RecordErrorsTo(&silent);
    if (!parser.ParseFromString(std::string(input.substr(end + 1)), message.get())) return nullptr;
    return message;
  }
  return nullptr;
}

std::string PrintProtoInput(const Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(message, &text);
  return std::string(message.GetDescriptor()->full_name()) + "\n" + text;
}

}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto message = foredraft::ParseProtoInput({reinterpret_cast<const char*>(data), size});
  if (message != nullptr) foredraft::FuzzMessage(*message);
  return 0;
}
