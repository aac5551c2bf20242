package dev.sessiond.client;

import io.grpc.ManagedChannel;
import io.grpc.Status;
import java.time.Duration;
import java.util.concurrent.TimeUnit;

/** Waits a few times for a server that is away. */
final class Patience {
  private static final int ATTEMPTS = 5;

  private final ManagedChannel channel;
  private final Backoff backoff = new Backoff();
  private int failures;

  Patience(ManagedChannel channel) {
    this.channel = channel;
  }

  /** Forgets the failures so far: it has gone on. */
  void reset() {
    failures = 0;
    backoff.reset();
  }

  /**
   * Returns after a while if another attempt is worth it, else throws {@code error}; {@code end} is
   * in the terms of System.nanoTime.
   */
  void waitOrThrow(SessiondException error, long end) {
    failures++;
    Duration wait = backoff.next(error.retryDelay());
    boolean inTime = System.nanoTime() + wait.toNanos() < end;
    if (error.code() != Status.Code.UNAVAILABLE || failures >= ATTEMPTS || !inTime) {
      throw error;
    }
    try {
      TimeUnit.NANOSECONDS.sleep(wait.toNanos());
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw error;
    }
    // The channel's own waits, which grow to minutes, are not to outlast ours.
    channel.resetConnectBackoff();
  }
}
