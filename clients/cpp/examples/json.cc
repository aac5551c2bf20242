#include "json.h"

#include <google/protobuf/util/json_util.h>

#include <iostream>

namespace json {

namespace {

using google::protobuf::Message;

const Message* Body(const sessiond::v1::Event& event) {
  const auto* field = event.GetDescriptor()->FindFieldByNumber(event.body_case());
  return field == nullptr ? nullptr : &event.GetReflection()->GetMessage(event, field);
}

}  // namespace

void Print(const Value& line) { std::cout << line.dump() << std::endl; }

Value FromMessage(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) {
    throw std::invalid_argument(status.ToString());
  }
  return Value::parse(text);
}

void ToMessage(const Value& value, Message& message) {
  const auto status = google::protobuf::util::JsonStringToMessage(value.dump(), &message);
  if (!status.ok()) {
    throw std::invalid_argument(message.GetTypeName() + ": " + status.ToString());
  }
}

Value FromEvent(const sessiond::v1::Event& event) {
  const Message* body = Body(event);
  return {{"seq", std::to_string(event.seq())},
          {"kind", sessiond::Kind(event)},
          {"request_id", event.request_id()},
          {"ignorable", event.ignorable()},
          {"actor", event.actor()},
          {"body", body == nullptr ? Value::object() : FromMessage(*body)}};
}

Value FromError(const sessiond::Error& error) {
  Value violations = Value::array();
  for (const auto& violation : error.violations()) {
    violations.push_back({{"field", violation.field}, {"description", violation.description}});
  }
  Value value = {{"code", sessiond::CodeName(error.code())},
                 {"message", error.message()},
                 {"reason", error.reason_name()},
                 {"metadata", error.metadata()},
                 {"violations", violations}};
  if (const auto delay = error.retry_delay()) {
    value["retry_delay_ms"] = delay->count();
  }
  return value;
}

std::optional<std::string> Text(const sessiond::v1::Event& event) {
  const Message* body = Body(event);
  if (body == nullptr) {
    return std::nullopt;
  }
  for (const char* name : {"text", "delta"}) {
    if (const auto* field = body->GetDescriptor()->FindFieldByName(name)) {
      return body->GetReflection()->GetString(*body, field);
    }
  }
  return std::nullopt;
}

}  // namespace json
