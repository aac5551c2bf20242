package dev.sessiond.examples;

import com.google.gson.JsonObject;
import dev.sessiond.client.Connection;
import dev.sessiond.client.Events;
import dev.sessiond.client.SessiondClient;
import dev.sessiond.client.SessiondException;
import dev.sessiond.client.SubscribeOptions;
import dev.sessiond.client.Subscription;
import dev.sessiond.v1.CreateSessionRequest;
import dev.sessiond.v1.Event;
import dev.sessiond.v1.GetServerInfoRequest;
import dev.sessiond.v1.SendRequest;
import dev.sessiond.v1.ServerServiceGrpc;
import dev.sessiond.v1.SessionServiceGrpc;
import java.nio.file.Path;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;

/** Prints a session's events, one line of JSON each: the history, then what happens. */
public final class Tail {
  private static final String USAGE =
      """
      usage: tail [--address ADDR] [--token-file FILE] [--tls-ca FILE]
                  [--session ID | --new [--driver NAME] [--workspace DIR]]
                  [--after N] [--send TEXT] [--count N]""";

  /** Whichever comes first, the end of the events or a signal, says how it ended; the other not. */
  private static final AtomicBoolean ENDED = new AtomicBoolean();

  private final Connection.Builder connection = Connection.newBuilder();
  private String session = "";
  private boolean fresh;
  private String driver = "echo";
  private String workspace = Path.of("").toAbsolutePath().toString();
  private long after;
  private String send;
  private long count = Long.MAX_VALUE;

  private Tail(List<String> arguments) {
    Iterator<String> rest = arguments.iterator();
    while (rest.hasNext()) {
      String flag = rest.next();
      if (flag.equals("--new")) {
        fresh = true;
      } else if (!rest.hasNext()) {
        throw new IllegalArgumentException("there is no " + flag + ", or it needs a value");
      } else {
        set(flag, rest.next());
      }
    }
    if (fresh != session.isEmpty()) {
      throw new IllegalArgumentException("either --session or --new is required");
    }
  }

  private void set(String flag, String value) {
    switch (flag) {
      case "--address" -> connection.address(value);
      case "--token-file" -> connection.tokenFile(Path.of(value));
      case "--tls-ca" -> connection.tlsCa(Path.of(value));
      case "--session" -> session = value;
      case "--driver" -> driver = value;
      case "--workspace" -> workspace = value;
      case "--after" -> after = number(flag, value, 0);
      case "--send" -> send = value;
      case "--count" -> count = number(flag, value, 1);
      default -> throw new IllegalArgumentException("there is no " + flag);
    }
  }

  private static long number(String flag, String text, long least) {
    try {
      long number = Long.parseLong(text);
      if (number >= least) {
        return number;
      }
    } catch (NumberFormatException e) {
      // Said below, like a number that is too small.
    }
    throw new IllegalArgumentException(
        flag + ": \"" + text + "\" is no number from " + least + " on");
  }

  private String run() {
    try (SessiondClient client = SessiondClient.connect(connection.build())) {
      // A server that is not there is told at once: a subscription would wait for it.
      client.call(
          ServerServiceGrpc.getGetServerInfoMethod(), GetServerInfoRequest.getDefaultInstance());
      if (fresh) {
        CreateSessionRequest request =
            CreateSessionRequest.newBuilder().setDriver(driver).setWorkspace(workspace).build();
        session =
            client
                .retry(SessionServiceGrpc.getCreateSessionMethod(), request)
                .getSession()
                .getSessionId();
      }
      if (send != null) {
        SendRequest request = SendRequest.newBuilder().setSessionId(session).setText(send).build();
        client.retry(SessionServiceGrpc.getSendMethod(), request);
      }
      SubscribeOptions options = SubscribeOptions.DEFAULT.withAfterSeq(after);
      try (Subscription events = client.subscribe(session, options)) {
        for (long number = 0; number < count; number++) {
          if (!events.hasNext()) {
            return "OK";
          }
          print(events.next());
        }
      }
      return "DONE";
    }
  }

  private static void print(Event event) {
    JsonObject line = new JsonObject();
    line.addProperty("seq", Long.toString(event.getSeq()));
    line.addProperty("kind", Events.kind(event));
    Json.text(event).ifPresent(text -> line.addProperty("text", text));
    Json.print(line);
  }

  private static int end(String how, SessiondException error) {
    if (ENDED.getAndSet(true)) {
      return 0;
    }
    JsonObject line = new JsonObject();
    line.addProperty("end", how);
    if (error != null) {
      line.add("error", Json.error(error));
    }
    Json.print(line);
    return error == null ? 0 : 1;
  }

  /**
   * SIGINT and SIGTERM are an ordinary end here: the exit status of the JVM would tell otherwise.
   */
  private static void onSignal() {
    if (!ENDED.get()) {
      end("CANCELLED", null);
      Runtime.getRuntime().halt(0);
    }
  }

  /** Whether {@code --help} stands where a flag can: the value of another may read like it. */
  private static boolean asksForHelp(List<String> arguments) {
    int i = 0;
    while (i < arguments.size()) {
      String flag = arguments.get(i);
      if (flag.equals("--help") || flag.equals("-h")) {
        return true;
      }
      i += flag.equals("--new") ? 1 : 2;
    }
    return false;
  }

  /**
   * Runs the program.
   *
   * @param arguments its flags
   */
  public static void main(String[] arguments) {
    if (asksForHelp(List.of(arguments))) {
      System.out.println(USAGE);
      return;
    }
    Runtime.getRuntime().addShutdownHook(new Thread(Tail::onSignal));
    int status;
    try {
      status = end(new Tail(List.of(arguments)).run(), null);
    } catch (SessiondException e) {
      status = end(e.code().name(), e);
    } catch (IllegalArgumentException e) {
      ENDED.set(true);
      System.err.println("tail: " + e.getMessage() + "\n" + USAGE);
      status = 2;
    }
    System.exit(status);
  }
}
