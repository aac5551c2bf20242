package dev.sessiond.client;

import dev.sessiond.v1.Event;
import dev.sessiond.v1.SessionServiceGrpc;
import dev.sessiond.v1.SubscribeRequest;
import dev.sessiond.v1.SubscribeResponse;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.Collections;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * A session's events, in order, each once, over as many connections as it takes.
 *
 * <p>For one reader at a time; {@link #cancel} may come from any thread. An event whose body is not
 * set is of a kind that this version does not know: its seq counts.
 *
 * <p>The iteration ends when the server ended the stream because the session was deleted. It throws
 * a {@link SessiondException} when it can't go on: the session does not exist, the transcript is
 * another one, the deadline has passed, it was cancelled.
 */
public final class Subscription implements Iterator<Event>, AutoCloseable {
  /** How many responses may wait here for the reader. */
  private static final int PREFETCH = 4;

  /** What only may be a cut is taken for one this often, without a response in between. */
  private static final int MAX_PERHAPS_CUT = 10;

  private static final Set<Status.Code> PERHAPS_CUT =
      Set.of(Status.Code.INTERNAL, Status.Code.UNKNOWN, Status.Code.CANCELLED);
  private static final long NEVER = Long.MAX_VALUE;

  /** What came: a response, or else the end of the stream; from no stream: a wake-up. */
  private record Item(Stream from, SubscribeResponse response, Status end, Metadata trailers) {}

  private final Connection connection;
  private final String sessionId;
  private final SubscribeOptions options;
  private final long begin = System.nanoTime();
  private final BlockingQueue<Item> inbox = new LinkedBlockingQueue<>();
  private final Backoff backoff = new Backoff();
  private final Position position;

  private Channels.Open open;
  private boolean ownChannel;
  private Iterator<Event> ready = Collections.emptyIterator();
  private long openAt;
  private long heardAt;
  private long streams;
  private int perhapsCut;
  private boolean over;
  private SessiondException failure;
  private volatile boolean cancelled;
  private volatile Stream stream;

  Subscription(
      Channels.Open open, Connection connection, String sessionId, SubscribeOptions options) {
    this.open = open;
    this.connection = connection;
    this.sessionId = sessionId;
    this.options = options;
    this.position = new Position(options.afterSeq(), options.transcriptId());
  }

  /**
   * Waits for the next event.
   *
   * @return whether there is one; false: the session was deleted
   * @throws SessiondException if it can't go on; every later call throws the same
   */
  @Override
  public boolean hasNext() {
    return advance(NEVER);
  }

  /**
   * Waits for the next event and returns it.
   *
   * @throws NoSuchElementException if the session was deleted
   * @throws SessiondException if it can't go on; every later call throws the same
   */
  @Override
  public Event next() {
    if (!advance(NEVER)) {
      throw new NoSuchElementException("the session was deleted");
    }
    return take();
  }

  /**
   * Waits for the next event, but not for long.
   *
   * @param patience how long
   * @return the event; empty when none came in that time, or none will: see {@link #isOver}
   * @throws SessiondException if it can't go on; every later call throws the same
   */
  public Optional<Event> poll(Duration patience) {
    return advance(sinceBegin() + patience.toNanos()) ? Optional.of(take()) : Optional.empty();
  }

  /** Ends it; the server learns of it at once. Whoever reads then gets {@code CANCELLED}. */
  public void cancel() {
    cancelled = true;
    Stream current = stream;
    if (current != null) {
      current.cancel("cancelled by the caller");
    }
    inbox.add(new Item(null, null, null, null));
  }

  /** Ends it, like {@link #cancel}. */
  @Override
  public void close() {
    cancel();
  }

  /**
   * Returns the seq of the last event handed over: what to store, to go on from there another day.
   *
   * @return a seq
   */
  public long bookmark() {
    return position.bookmark;
  }

  /**
   * Returns the highest seq of the session when the server last spoke.
   *
   * @return a seq
   */
  public long headSeq() {
    return position.headSeq;
  }

  /**
   * Returns the lowest seq that the server still has.
   *
   * @return a seq
   */
  public long firstSeq() {
    return position.firstSeq;
  }

  /**
   * Returns which transcript this is: to be stored beside the bookmark.
   *
   * @return its id; empty before the first response
   */
  public String transcriptId() {
    return position.transcriptId;
  }

  /**
   * Returns whether all that has happened so far was handed over.
   *
   * @return whether the bookmark is the head
   */
  public boolean caughtUp() {
    return position.heard && position.bookmark >= position.headSeq;
  }

  /**
   * Returns whether the server ended it, since the session was deleted.
   *
   * @return whether no more events will come
   */
  public boolean isOver() {
    return over && failure == null;
  }

  /**
   * Returns how many responses came without events.
   *
   * @return the number
   */
  public long heartbeats() {
    return position.heartbeats;
  }

  /**
   * Returns how many times another stream was opened after the first.
   *
   * @return the number
   */
  public long reconnects() {
    return Math.max(0, streams - 1);
  }

  private Event take() {
    Event event = ready.next();
    position.bookmark = event.getSeq();
    return event;
  }

  /** Returns whether there is an event; false: it is over, or the time {@code until} has come. */
  private boolean advance(long until) {
    while (!over && !cancelled && !ready.hasNext()) {
      long end = options.deadline().map(Duration::toNanos).orElse(NEVER);
      if (sinceBegin() >= end) {
        finish(failed(Status.DEADLINE_EXCEEDED, "the deadline has passed"));
      } else if (stream == null && sinceBegin() >= openAt) {
        openStream(end);
      } else {
        long due = stream == null ? openAt : heardAt + options.watchdog().toNanos();
        Item item = receive(Math.min(due, Math.min(end, until)));
        if (item != null) {
          accept(item);
        } else if (stream != null && sinceBegin() >= due) {
          silent();
        } else if (sinceBegin() >= until) {
          return false;
        }
      }
    }
    if (cancelled) {
      finish(failed(Status.CANCELLED, "cancelled by the caller"));
    }
    if (failure != null) {
      throw failure;
    }
    return ready.hasNext();
  }

  private Item receive(long until) {
    try {
      return inbox.poll(until - sinceBegin(), TimeUnit.NANOSECONDS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      cancel();
      return null;
    }
  }

  private void accept(Item item) {
    if (item.from == null || item.from != stream) {
      return;
    }
    if (item.response == null) {
      stream = null;
      ended(item.end, item.trailers);
      return;
    }
    heardAt = sinceBegin();
    perhapsCut = 0;
    Optional<SessiondException> broken = position.accept(item.response);
    if (broken.isPresent()) {
      finish(broken.get());
      return;
    }
    if (item.response.getEventsCount() > 0) {
      backoff.reset();
    }
    ready = item.response.getEventsList().iterator();
    item.from.more();
  }

  private void openStream(long end) {
    if (streams > 0) {
      // The channel's own waits, which grow to minutes, are not to outlast ours.
      open.channel().resetConnectBackoff();
    }
    streams++;
    heardAt = sinceBegin();
    CallOptions callOptions = CallOptions.DEFAULT;
    if (end != NEVER) {
      callOptions = callOptions.withDeadlineAfter(end - sinceBegin(), TimeUnit.NANOSECONDS);
    }
    Stream opened =
        new Stream(open.channel().newCall(SessionServiceGrpc.getSubscribeMethod(), callOptions));
    stream = opened;
    opened.start(
        SubscribeRequest.newBuilder()
            .setSessionId(sessionId)
            .setAfterSeq(position.bookmark)
            .setTranscriptId(position.transcriptId)
            .build());
    if (cancelled) {
      opened.cancel("cancelled by the caller");
    }
  }

  private void silent() {
    stream.cancel("nothing was heard for too long");
    stream = null;
    // A connection that swallows everything would swallow the next stream too.
    Channels.Open before = open;
    open = Channels.open(connection);
    if (ownChannel) {
      before.close();
    }
    ownChannel = true;
    String span = options.watchdog().toMillis() + " ms";
    broke(failed(Status.UNAVAILABLE, "nothing was heard for " + span));
  }

  private void ended(Status status, Metadata trailers) {
    if (status.isOk()) {
      finish(null);
    } else {
      broke(SessiondException.of(status, trailers));
    }
  }

  private void broke(SessiondException error) {
    if (!options.resume() || !heals(error)) {
      finish(error);
      return;
    }
    openAt = sinceBegin() + backoff.next(error.retryDelay()).toNanos();
  }

  private boolean heals(SessiondException error) {
    if (PERHAPS_CUT.contains(error.code()) && error.reasonName().isEmpty()) {
      perhapsCut++;
      return perhapsCut <= MAX_PERHAPS_CUT;
    }
    return error.code() == Status.Code.UNAVAILABLE
        || (position.heard && error.retryDelay().isPresent());
  }

  private void finish(SessiondException error) {
    if (over) {
      return;
    }
    over = true;
    failure = error;
    Stream current = stream;
    if (current != null) {
      current.cancel("the subscription is over");
    }
    if (ownChannel) {
      open.close();
    }
  }

  private static SessiondException failed(Status status, String description) {
    return SessiondException.of(status.withDescription(description));
  }

  private long sinceBegin() {
    return System.nanoTime() - begin;
  }

  /** Where the transcript stands. */
  private static final class Position {
    private long bookmark;
    private long headSeq;
    private long firstSeq;
    private String transcriptId;
    private boolean heard;
    private long heartbeats;

    Position(long bookmark, String transcriptId) {
      this.bookmark = bookmark;
      this.transcriptId = transcriptId;
    }

    /** Checks what the server promises; returns what it broke. */
    Optional<SessiondException> accept(SubscribeResponse response) {
      String id = response.getTranscriptId();
      if (!transcriptId.isEmpty() && !transcriptId.equals(id)) {
        return Optional.of(
            SessiondException.withReason(
                Status.FAILED_PRECONDITION.withDescription(
                    "the transcript is " + id + ", not " + transcriptId + " any more"),
                dev.sessiond.v1.ErrorReason.ERROR_REASON_TRANSCRIPT_CHANGED));
      }
      long last = bookmark;
      if (last == 0 && response.getFirstSeq() > 1) {
        // From the beginning, of a transcript whose beginning is gone.
        last = response.getFirstSeq() - 1;
      }
      for (Event event : response.getEventsList()) {
        last++;
        if (event.getSeq() != last) {
          String text = "event " + event.getSeq() + " came where " + last + " must come";
          return Optional.of(failed(Status.DATA_LOSS, text));
        }
      }
      heard = true;
      headSeq = response.getHeadSeq();
      firstSeq = response.getFirstSeq();
      transcriptId = id;
      heartbeats += response.getEventsCount() == 0 ? 1 : 0;
      return Optional.empty();
    }
  }

  /** One stream of the subscription. */
  private final class Stream extends ClientCall.Listener<SubscribeResponse> {
    private final ClientCall<SubscribeRequest, SubscribeResponse> call;

    Stream(ClientCall<SubscribeRequest, SubscribeResponse> call) {
      this.call = call;
    }

    void start(SubscribeRequest request) {
      try {
        call.start(this, new Metadata());
        call.request(PREFETCH);
        call.sendMessage(request);
        call.halfClose();
      } catch (StatusRuntimeException e) {
        onClose(e.getStatus(), new Metadata());
      }
    }

    void more() {
      call.request(1);
    }

    void cancel(String why) {
      call.cancel(why, null);
    }

    @Override
    public void onMessage(SubscribeResponse response) {
      inbox.add(new Item(this, response, null, null));
    }

    @Override
    public void onClose(Status status, Metadata trailers) {
      inbox.add(new Item(this, null, status, trailers));
    }
  }
}
