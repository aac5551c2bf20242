package dev.sessiond.client;

import dev.sessiond.v1.Event;
import java.util.Locale;

/** Helps with events. */
public final class Events {
  private Events() {}

  /**
   * Returns what an event says.
   *
   * @param event an event
   * @return the name of its body in the proto, {@code assistant_text} for one, or {@code unknown}
   *     for a body that this version does not know
   */
  public static String kind(Event event) {
    Event.BodyCase body = event.getBodyCase();
    if (body == Event.BodyCase.BODY_NOT_SET) {
      return "unknown";
    }
    return body.name().toLowerCase(Locale.ROOT);
  }
}
