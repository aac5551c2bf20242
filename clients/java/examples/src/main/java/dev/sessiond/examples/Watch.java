package dev.sessiond.examples;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import dev.sessiond.client.Events;
import dev.sessiond.client.SessiondClient;
import dev.sessiond.client.SessiondException;
import dev.sessiond.client.SubscribeOptions;
import dev.sessiond.client.Subscription;
import dev.sessiond.v1.Event;
import io.grpc.Status;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

/** The action {@code subscribe}. */
final class Watch {
  /** How often heartbeats and reconnects are looked at while no event comes. */
  private static final Duration GLANCE = Duration.ofMillis(20);

  private final Subscription events;
  private final Step step;
  private final Step until;
  private final Optional<Long> cancelAfter;
  private final Set<String> announced = new HashSet<>();
  private final Map<String, Long> kinds = new TreeMap<>();
  private final MessageDigest text = Actions.sha256();
  private final JsonArray kept = new JsonArray();
  private final long keep;
  private final long afterSeq;
  private long textBytes;
  private long count;
  private long gaps;
  private long repeats;
  private long lastSeq;
  private Event first;
  private Event last;

  Watch(SessiondClient client, Step step) {
    this.step = step;
    this.until = step.part("until");
    this.cancelAfter = step.number("cancel_after");
    this.keep = step.number("keep").orElse(0L);
    this.afterSeq = step.number("after_seq").orElse(0L);
    this.lastSeq = afterSeq;
    step.element("announce")
        .map(JsonElement::getAsJsonArray)
        .ifPresent(wanted -> wanted.forEach(item -> announced.add(item.getAsString())));
    SubscribeOptions options =
        SubscribeOptions.after(afterSeq, step.text("transcript_id"))
            .withDeadline(step.millis("deadline_ms", 60_000))
            .withResume(step.flag("resume", true))
            .withWatchdog(step.millis("watchdog_ms", 45_000));
    this.events = client.subscribe(step.required("session_id"), options);
  }

  JsonObject run() {
    try (events) {
      return report(follow(), null);
    } catch (SessiondException e) {
      return report(e.code().name(), e);
    }
  }

  private String follow() {
    while (true) {
      if (events.caughtUp() && announced.remove("caught_up")) {
        announce("caught_up", new JsonPrimitive(true));
      }
      if (holds()) {
        return "DONE";
      }
      if (cancelAfter.filter(number -> count >= number).isPresent()) {
        events.cancel();
      }
      Optional<Event> event = events.poll(GLANCE);
      event.ifPresent(this::add);
      if (event.isEmpty() && events.isOver()) {
        return "OK";
      }
    }
  }

  private boolean holds() {
    return reached("count", count)
        || reached("seq", lastSeq)
        || until.present("kind").filter(kinds::containsKey).isPresent()
        || reached("heartbeats", events.heartbeats())
        || reached("reconnects", events.reconnects())
        || (until.flag("caught_up", false) && events.caughtUp());
  }

  private boolean reached(String key, long now) {
    return until.number(key).filter(wanted -> now >= wanted).isPresent();
  }

  private void add(Event event) {
    long seq = event.getSeq();
    boolean anywhere = first == null && afterSeq == 0;
    if (seq <= lastSeq) {
      repeats++;
    } else if (seq != lastSeq + 1 && !anywhere) {
      gaps++;
    }
    count++;
    lastSeq = seq;
    first = first == null ? event : first;
    last = event;
    kinds.merge(Events.kind(event), 1L, Long::sum);
    if (event.hasAssistantText()) {
      byte[] delta = event.getAssistantText().getDelta().getBytes(StandardCharsets.UTF_8);
      text.update(delta);
      textBytes += delta.length;
    }
    if (kept.size() < keep) {
      kept.add(Json.event(event));
    }
    if (announced.remove(Long.toString(count))) {
      announce("events", new JsonPrimitive(count));
    }
  }

  private void announce(String what, JsonPrimitive value) {
    JsonObject progress = new JsonObject();
    progress.addProperty("step", step.required("id"));
    progress.add(what, value);
    JsonObject line = new JsonObject();
    line.add("progress", progress);
    Json.print(line);
  }

  private JsonObject report(String end, SessiondException error) {
    JsonObject result = new JsonObject();
    result.addProperty("end", end);
    if (error != null && error.code() != Status.Code.CANCELLED) {
      result.add("error", Json.error(error));
    }
    result.addProperty("count", count);
    if (first != null) {
      result.addProperty("first", Long.toString(first.getSeq()));
    }
    result.addProperty("last_seq", Long.toString(lastSeq));
    result.addProperty("gaps", gaps);
    result.addProperty("repeats", repeats);
    result.addProperty("head_seq", Long.toString(events.headSeq()));
    result.addProperty("first_seq", Long.toString(events.firstSeq()));
    result.addProperty("transcript_id", events.transcriptId());
    result.addProperty("caught_up", events.caughtUp());
    result.addProperty("heartbeats", events.heartbeats());
    result.addProperty("reconnects", events.reconnects());
    JsonObject seen = new JsonObject();
    kinds.forEach(seen::addProperty);
    result.add("kinds", seen);
    result.addProperty("text_bytes", textBytes);
    result.addProperty("text_sha256", Actions.hex(text));
    result.add("last", last == null ? new JsonObject() : Json.event(last));
    result.add("events", kept);
    return result;
  }
}
