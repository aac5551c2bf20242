package dev.sessiond.client;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;
import java.util.function.Function;

/** What the environment and the server of this machine say about how to connect. */
final class Discovery {
  private final Function<String, String> environment;
  private final Path runtimeFolder;
  private final JsonObject announced;

  Discovery(Function<String, String> environment) {
    this.environment = environment;
    this.runtimeFolder = runtimeFolder();
    this.announced = readAnnounced(runtimeFolder.resolve("address.json"));
  }

  /** Returns a variable; an empty one counts as unset. */
  Optional<String> variable(String name) {
    return Optional.ofNullable(environment.apply(name)).filter(value -> !value.isEmpty());
  }

  Optional<Path> file(String name) {
    return variable(name).map(Path::of);
  }

  String address() {
    return variable("SESSIOND_ADDRESS")
        .or(() -> announced("unix"))
        .or(this::announcedTcp)
        .orElseGet(() -> "unix://" + runtimeFolder.resolve("sessiond.sock"));
  }

  Optional<Token> token() {
    Path beside = runtimeFolder.resolve("token");
    return variable("SESSIOND_TOKEN")
        .<Token>map(Token.Text::new)
        .or(() -> file("SESSIOND_TOKEN_FILE").map(Token.File::new))
        .or(() -> announced("token_file").map(Path::of).map(Token.File::new))
        .or(() -> Optional.of(beside).filter(Files::exists).map(Token.File::new));
  }

  Optional<Path> tlsCa() {
    return file("SESSIOND_TLS_CA").or(() -> announced("tls_ca").map(Path::of));
  }

  private Path runtimeFolder() {
    return file("SESSIOND_RUNTIME_DIR")
        .or(() -> file("XDG_RUNTIME_DIR").map(folder -> folder.resolve("sessiond")))
        .orElseGet(() -> dataFolder().resolve("run"));
  }

  private Path dataFolder() {
    return file("SESSIOND_DATA_DIR")
        .or(() -> file("XDG_DATA_HOME").map(folder -> folder.resolve("sessiond")))
        .orElseGet(
            () -> {
              Path home = file("HOME").orElseGet(() -> Path.of(System.getProperty("user.home")));
              return home.resolve(".local/share/sessiond");
            });
  }

  private Optional<String> announcedTcp() {
    return announced("tcp")
        .map(
            address -> {
              boolean tls = announced("tls_ca").isPresent() && !address.contains("://");
              return tls ? "https://" + address : address;
            });
  }

  private Optional<String> announced(String key) {
    return Optional.ofNullable(announced.get(key))
        .filter(value -> value.isJsonPrimitive() && value.getAsJsonPrimitive().isString())
        .map(JsonElement::getAsString)
        .filter(value -> !value.isEmpty());
  }

  /** Nothing when there is no such file, or one that no server wrote. */
  private static JsonObject readAnnounced(Path path) {
    try {
      JsonElement content = JsonParser.parseString(Files.readString(path));
      return content.isJsonObject() ? content.getAsJsonObject() : new JsonObject();
    } catch (IOException | JsonParseException e) {
      return new JsonObject();
    }
  }
}
