package dev.sessiond.examples;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.time.Duration;
import java.util.Optional;

/** An object of the document, whose references are resolved. */
record Step(JsonObject json) {

  /** A text that is there and not empty. */
  Optional<String> present(String key) {
    return element(key).map(JsonElement::getAsString).filter(text -> !text.isEmpty());
  }

  String text(String key) {
    return present(key).orElse("");
  }

  /** A text that must be there. */
  String required(String key) {
    return element(key)
        .map(JsonElement::getAsString)
        .orElseThrow(() -> new IllegalArgumentException(key + " is missing in " + json));
  }

  /** A number, whether it is written as a number or as a text. */
  Optional<Long> number(String key) {
    return element(key).map(JsonElement::getAsString).map(Long::valueOf);
  }

  boolean flag(String key, boolean otherwise) {
    return element(key).map(JsonElement::getAsBoolean).orElse(otherwise);
  }

  Duration millis(String key, long otherwise) {
    return Duration.ofMillis(number(key).orElse(otherwise));
  }

  Step part(String key) {
    return new Step(element(key).map(JsonElement::getAsJsonObject).orElseGet(JsonObject::new));
  }

  Optional<JsonElement> element(String key) {
    return Optional.ofNullable(json.get(key)).filter(value -> !value.isJsonNull());
  }
}
