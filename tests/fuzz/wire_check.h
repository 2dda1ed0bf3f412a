#pragma once

// What the fuzz targets of the wires over HTTP with one choice an answer share.

#include <functional>
#include <memory>
#include <string>

#include "server/api/http/http_wire.h"
#include "tests/fuzz/served_abacus.h"

namespace foredraft {

// Checks an answer: `whole` and `stream` are two formats for it, which have begun.
using CheckWireAnswer =
    std::function<void(std::unique_ptr<AnswerFormat> whole, std::unique_ptr<AnswerFormat> stream,
                       const ServedAbacus::Answer& answer)>;

// Reads the body in both ways, has an engine answer what is taken, and checks the answer and what notes and
// errors say.
void FuzzWire(const HttpWire& wire, bool refuses_unknown, const std::string& body,
              const CheckWireAnswer& check);

std::string WholeText(AnswerFormat& format, const ServedAbacus::Answer& answer);
std::string StreamText(AnswerFormat& format, const ServedAbacus::Answer& answer);

}  // namespace foredraft
