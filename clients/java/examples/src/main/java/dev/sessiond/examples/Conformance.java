package dev.sessiond.examples;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import dev.sessiond.client.Connection;
import dev.sessiond.client.SessiondClient;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * Carries out a document of steps and reports what came of each, in JSON: the subject of the
 * conformance suite. Its language is described in tests/clients/README.md.
 */
public final class Conformance {
  private Conformance() {}

  private static String read(String[] arguments) throws IOException {
    if (arguments.length > 0) {
      return Files.readString(Path.of(arguments[0]));
    }
    return new String(System.in.readAllBytes(), StandardCharsets.UTF_8);
  }

  private static Connection connection(JsonObject document) {
    JsonObject given =
        document.has("connection") ? document.getAsJsonObject("connection") : new JsonObject();
    Step texts = new Step(given);
    Connection.Builder builder = Connection.newBuilder();
    texts.present("address").ifPresent(builder::address);
    texts.present("token").ifPresent(builder::token);
    texts.present("token_file").map(Path::of).ifPresent(builder::tokenFile);
    texts.present("tls_ca").map(Path::of).ifPresent(builder::tlsCa);
    return builder.build();
  }

  private static JsonObject carryOut(SessiondClient client, JsonObject document)
      throws IOException, InterruptedException {
    JsonObject results = new JsonObject();
    for (JsonElement element : document.getAsJsonArray("steps")) {
      Step step = new Step(References.resolve(element, results).getAsJsonObject());
      long started = System.nanoTime();
      JsonObject result = Actions.run(client, step);
      long elapsed = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - started);
      result.addProperty("elapsed_ms", elapsed);
      results.add(step.required("id"), result);
    }
    return results;
  }

  /** Loads the classes of a call and of a stream, so that no step's time is that of the JVM. */
  private static void warmUp() {
    try (SessiondClient nobody = SessiondClient.connect(Connection.to("/nobody/is/there.sock"))) {
      for (String action : List.of("call", "subscribe")) {
        JsonObject step = new JsonObject();
        step.addProperty("id", "warm-up");
        step.addProperty("do", action);
        step.addProperty("method", "GetServerInfo");
        step.addProperty("session_id", "nobody");
        step.addProperty("resume", false);
        Actions.run(nobody, new Step(step));
      }
    } catch (IOException | InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  /**
   * Runs the program.
   *
   * @param arguments a file with the document; none: it comes on standard input
   */
  public static void main(String[] arguments) {
    int status = 0;
    try {
      warmUp();
      JsonObject document = JsonParser.parseString(read(arguments)).getAsJsonObject();
      try (SessiondClient client = SessiondClient.connect(connection(document))) {
        JsonObject line = new JsonObject();
        line.add("results", carryOut(client, document));
        Json.print(line);
      }
    } catch (IOException
        | InterruptedException
        | JsonParseException
        | IllegalArgumentException
        | IllegalStateException e) {
      System.err.println("conformance: " + e);
      status = 1;
    }
    System.exit(status);
  }
}
