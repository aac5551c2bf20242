#pragma once

#include <sessiond/client.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

/// Protobuf, events and errors in JSON.
namespace json {

using Value = nlohmann::ordered_json;

/// Prints one line, at once.
void Print(const Value& line);

/// A message, with the names of the proto.
Value FromMessage(const google::protobuf::Message& message);

/// Fills a message; throws std::invalid_argument when the value is not one.
void ToMessage(const Value& value, google::protobuf::Message& message);

Value FromEvent(const sessiond::v1::Event& event);

Value FromError(const sessiond::Error& error);

/// The text of an event, when its body is of a kind that has one.
std::optional<std::string> Text(const sessiond::v1::Event& event);

}  // namespace json
