package dev.sessiond.examples;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import dev.sessiond.client.Events;
import dev.sessiond.client.SessiondException;
import dev.sessiond.client.Violation;
import dev.sessiond.v1.Event;
import java.util.Optional;

/** Protobuf, events and errors in JSON. */
final class Json {
  private static final JsonFormat.Printer PRINTER =
      JsonFormat.printer().preservingProtoFieldNames().omittingInsignificantWhitespace();

  private Json() {}

  /** Prints one line, at once. */
  static void print(JsonObject line) {
    System.out.println(line);
    System.out.flush();
  }

  static JsonObject message(Message message) {
    try {
      return JsonParser.parseString(PRINTER.print(message)).getAsJsonObject();
    } catch (InvalidProtocolBufferException e) {
      throw new IllegalStateException("every message of the contract is JSON", e);
    }
  }

  static void merge(JsonElement json, Message.Builder builder) {
    try {
      JsonFormat.parser().merge(json.toString(), builder);
    } catch (InvalidProtocolBufferException e) {
      throw new IllegalArgumentException(
          builder.getDescriptorForType().getName() + ": " + e.getMessage(), e);
    }
  }

  static Optional<Message> body(Event event) {
    FieldDescriptor field = Event.getDescriptor().findFieldByName(Events.kind(event));
    return Optional.ofNullable(field).map(event::getField).map(Message.class::cast);
  }

  /** The text of an event, when its body is of a kind that has one. */
  static Optional<String> text(Event event) {
    return body(event)
        .flatMap(
            body -> {
              FieldDescriptor text = body.getDescriptorForType().findFieldByName("text");
              FieldDescriptor delta = body.getDescriptorForType().findFieldByName("delta");
              return Optional.ofNullable(text == null ? delta : text)
                  .map(field -> (String) body.getField(field));
            });
  }

  static JsonObject event(Event event) {
    JsonObject json = new JsonObject();
    json.addProperty("seq", Long.toString(event.getSeq()));
    json.addProperty("kind", Events.kind(event));
    json.addProperty("request_id", event.getRequestId());
    json.addProperty("ignorable", event.getIgnorable());
    json.addProperty("actor", event.getActor());
    json.add("body", body(event).map(Json::message).orElseGet(JsonObject::new));
    return json;
  }

  static JsonObject error(SessiondException error) {
    JsonObject metadata = new JsonObject();
    error.metadata().forEach(metadata::addProperty);
    JsonArray violations = new JsonArray();
    for (Violation violation : error.violations()) {
      JsonObject item = new JsonObject();
      item.addProperty("field", violation.field());
      item.addProperty("description", violation.description());
      violations.add(item);
    }
    JsonObject json = new JsonObject();
    json.addProperty("code", error.code().name());
    json.addProperty("message", error.description());
    json.addProperty("reason", error.reasonName());
    json.add("metadata", metadata);
    json.add("violations", violations);
    error.retryDelay().ifPresent(d -> json.addProperty("retry_delay_ms", d.toMillis()));
    return json;
  }
}
