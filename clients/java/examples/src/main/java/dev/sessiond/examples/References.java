package dev.sessiond.examples;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.Map;

/** Replaces every {@code $path} by what stands there in the results so far. */
final class References {
  private References() {}

  static JsonElement resolve(JsonElement value, JsonObject results) {
    if (value.isJsonObject()) {
      JsonObject resolved = new JsonObject();
      for (Map.Entry<String, JsonElement> entry : value.getAsJsonObject().entrySet()) {
        resolved.add(entry.getKey(), resolve(entry.getValue(), results));
      }
      return resolved;
    }
    if (value.isJsonArray()) {
      JsonArray resolved = new JsonArray();
      value.getAsJsonArray().forEach(item -> resolved.add(resolve(item, results)));
      return resolved;
    }
    boolean text = value.isJsonPrimitive() && value.getAsJsonPrimitive().isString();
    if (text && value.getAsString().startsWith("$")) {
      return lookUp(value.getAsString().substring(1), results);
    }
    return value;
  }

  private static JsonElement lookUp(String path, JsonElement results) {
    JsonElement value = results;
    for (String part : path.split("\\.")) {
      value = child(value, part);
      if (value == null) {
        throw new IllegalArgumentException("there is no \"" + path + "\" in the results so far");
      }
    }
    return value;
  }

  private static JsonElement child(JsonElement value, String part) {
    if (value.isJsonObject()) {
      return value.getAsJsonObject().get(part);
    }
    if (!value.isJsonArray() || !part.matches("[0-9]{1,9}")) {
      return null;
    }
    JsonArray items = value.getAsJsonArray();
    int index = Integer.parseInt(part);
    return index < items.size() ? items.get(index) : null;
  }
}
