package dev.sessiond.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class BackoffTest {
  @Test
  void waitsDoubleUpToFiveSecondsAndStartAnew() {
    Backoff backoff = new Backoff();
    for (long expected : new long[] {100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
      double wait = backoff.next(Optional.empty()).toNanos() / 1e6 / expected;
      assertTrue(wait >= 0.8 && wait <= 1.2, wait + " of " + expected);
    }
    backoff.reset();
    assertTrue(backoff.next(Optional.empty()).toMillis() <= 120);
  }

  @Test
  void theServerIsObeyed() {
    Backoff backoff = new Backoff();
    assertEquals(Duration.ofSeconds(2), backoff.next(Optional.of(Duration.ofSeconds(2))));
    assertTrue(backoff.next(Optional.of(Duration.ofMillis(1))).toMillis() >= 160);
  }
}
