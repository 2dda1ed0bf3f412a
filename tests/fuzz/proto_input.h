#pragma once

// Inputs of targets whose input is a message: a line with the message's full name, then the message in
// protobuf's text format. The corpus stays readable, and proto_mutator.cc changes fields instead of bytes.

#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace foredraft {

// What a target defines.
const std::vector<const google::protobuf::Message*>&
FuzzedMessages();                                            // default instances of the types it takes
void FuzzMessage(const google::protobuf::Message& message);  // one of those types

// Null: `input` is no message of these types.
std::unique_ptr<google::protobuf::Message> ParseProtoInput(std::string_view input);
std::string PrintProtoInput(const google::protobuf::Message& message);

}  // namespace foredraft
