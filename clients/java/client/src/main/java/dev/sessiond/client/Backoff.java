package dev.sessiond.client;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;

/**
 * How long to wait before the next attempt: doubled each time, and a little at random so that many
 * clients do not come back in one moment.
 */
final class Backoff {
  private static final long FIRST_MILLIS = 100;
  private static final long LONGEST_MILLIS = 5_000;

  private long nextMillis = FIRST_MILLIS;

  void reset() {
    nextMillis = FIRST_MILLIS;
  }

  /** Returns the wait, not shorter than what the server asked for. */
  Duration next(Optional<Duration> told) {
    double spread = ThreadLocalRandom.current().nextDouble(0.8, 1.2);
    Duration wait = Duration.ofNanos(Math.round(nextMillis * spread * 1_000_000));
    nextMillis = Math.min(nextMillis * 2, LONGEST_MILLIS);
    return told.filter(asked -> asked.compareTo(wait) > 0).orElse(wait);
  }
}
