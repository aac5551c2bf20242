package dev.sessiond.client;

import java.time.Duration;
import java.util.Optional;

/**
 * From where to follow a session, and for how long.
 *
 * @param afterSeq only events with a higher seq; 0 is all of them
 * @param transcriptId the transcript that {@code afterSeq} was taken from, another one fails with
 *     {@code TRANSCRIPT_CHANGED}; empty: whichever
 * @param deadline how long to follow, over all connections together; empty: for ever
 * @param resume whether to go on after a cut
 * @param watchdog how long a silence counts as a cut; 45 s is three heartbeats
 */
public record SubscribeOptions(
    long afterSeq,
    String transcriptId,
    Optional<Duration> deadline,
    boolean resume,
    Duration watchdog) {

  /** The whole transcript, then whatever comes, for ever. */
  public static final SubscribeOptions DEFAULT =
      new SubscribeOptions(0, "", Optional.empty(), true, Duration.ofSeconds(45));

  /**
   * Returns the options to go on from a bookmark.
   *
   * @param bookmark {@link Subscription#bookmark()} of before
   * @param transcriptId {@link Subscription#transcriptId()} of before
   * @return the options
   */
  public static SubscribeOptions after(long bookmark, String transcriptId) {
    return DEFAULT.withAfterSeq(bookmark).withTranscriptId(transcriptId);
  }

  /**
   * Returns these options with another start.
   *
   * @param seq only events with a higher seq
   * @return the options
   */
  public SubscribeOptions withAfterSeq(long seq) {
    return new SubscribeOptions(seq, transcriptId, deadline, resume, watchdog);
  }

  /**
   * Returns these options with another transcript.
   *
   * @param id the only transcript that is wanted
   * @return the options
   */
  public SubscribeOptions withTranscriptId(String id) {
    return new SubscribeOptions(afterSeq, id, deadline, resume, watchdog);
  }

  /**
   * Returns these options with a deadline.
   *
   * @param span how long to follow
   * @return the options
   */
  public SubscribeOptions withDeadline(Duration span) {
    return new SubscribeOptions(afterSeq, transcriptId, Optional.of(span), resume, watchdog);
  }

  /**
   * Returns these options with or without resuming.
   *
   * @param wanted whether to go on after a cut
   * @return the options
   */
  public SubscribeOptions withResume(boolean wanted) {
    return new SubscribeOptions(afterSeq, transcriptId, deadline, wanted, watchdog);
  }

  /**
   * Returns these options with another watchdog.
   *
   * @param silence how long a silence counts as a cut
   * @return the options
   */
  public SubscribeOptions withWatchdog(Duration silence) {
    return new SubscribeOptions(afterSeq, transcriptId, deadline, resume, silence);
  }
}
