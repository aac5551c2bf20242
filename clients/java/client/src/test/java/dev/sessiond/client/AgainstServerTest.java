package dev.sessiond.client;

import static dev.sessiond.client.ScriptedServer.events;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.sessiond.v1.GetSessionRequest;
import dev.sessiond.v1.SendRequest;
import dev.sessiond.v1.SendResponse;
import dev.sessiond.v1.SessionServiceGrpc;
import io.grpc.Status;
import io.grpc.Status.Code;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Timeout(20)
class AgainstServerTest {
  @TempDir Path folder;
  private ScriptedServer server;
  private SessiondClient client;

  @BeforeEach
  void start() throws IOException {
    server = new ScriptedServer(folder);
    client = SessiondClient.connect(server.connection());
  }

  @AfterEach
  void stop() throws InterruptedException {
    client.close();
    server.stop();
  }

  private static List<Long> drain(Subscription subscription) {
    List<Long> seqs = new ArrayList<>();
    while (subscription.hasNext()) {
      seqs.add(subscription.next().getSeq());
    }
    return seqs;
  }

  @Test
  void itGoesOnAfterTheLastEventItGave() {
    server
        .says(Status.UNAVAILABLE, events(1, 2, 3))
        .says(Status.UNKNOWN)
        .says(Status.OK, events(4, 5));
    try (Subscription subscription = client.subscribe("s1")) {
      assertEquals(List.of(1L, 2L, 3L, 4L, 5L), drain(subscription));
      assertTrue(subscription.isOver());
      assertEquals(2, subscription.reconnects());
    }
    assertEquals(
        List.of(0L, 3L, 3L), server.subscribed.stream().map(r -> r.getAfterSeq()).toList());
    assertEquals(
        List.of("", "t1", "t1"), server.subscribed.stream().map(r -> r.getTranscriptId()).toList());
  }

  @Test
  void withoutResumeTheFirstErrorEndsIt() {
    server.says(Status.UNAVAILABLE, events(1));
    Subscription subscription = client.subscribe("s1", SubscribeOptions.DEFAULT.withResume(false));
    assertEquals(1, subscription.next().getSeq());
    for (int again = 0; again < 2; again++) {
      SessiondException error = assertThrows(SessiondException.class, subscription::hasNext);
      assertEquals(Code.UNAVAILABLE, error.code());
    }
  }

  @ParameterizedTest
  @CsvSource({"1 2 4", "1 1", "2"})
  void aPromiseThatIsBrokenIsDataLoss(String seqs) {
    long[] broken = List.of(seqs.split(" ")).stream().mapToLong(Long::parseLong).toArray();
    server.says(null, events(broken));
    Subscription subscription = client.subscribe("s1");
    SessiondException error = assertThrows(SessiondException.class, subscription::next);
    assertEquals(Code.DATA_LOSS, error.code());
    assertEquals(0, subscription.bookmark());
  }

  @Test
  void attemptsComeFurtherAndFurtherApart() {
    for (int attempt = 0; attempt < 100; attempt++) {
      server.says(Status.UNAVAILABLE);
    }
    SubscribeOptions options = SubscribeOptions.DEFAULT.withDeadline(Duration.ofSeconds(3));
    Subscription subscription = client.subscribe("s1", options);
    SessiondException error = assertThrows(SessiondException.class, subscription::next);
    assertEquals(Code.DEADLINE_EXCEEDED, error.code());
    // At 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s, a fifth more or less.
    int attempts = server.subscribed.size();
    assertTrue(attempts >= 3 && attempts <= 6, attempts + " attempts within 3 s");
  }

  @Test
  void aSilentServerIsLeftForNewConnection() throws InterruptedException {
    server.says(null, events(1)).says(Status.OK, events(2));
    SubscribeOptions options = SubscribeOptions.DEFAULT.withWatchdog(Duration.ofMillis(300));
    try (Subscription subscription = client.subscribe("s1", options)) {
      assertEquals(List.of(1L, 2L), drain(subscription));
    }
    assertTrue(server.left.await(5, TimeUnit.SECONDS));
  }

  @Test
  void deadlineEndsItForGood() {
    server.says(null, events(1, 2));
    SubscribeOptions options = SubscribeOptions.DEFAULT.withDeadline(Duration.ofMillis(300));
    Subscription subscription = client.subscribe("s1", options);
    subscription.next();
    subscription.next();
    SessiondException error = assertThrows(SessiondException.class, subscription::next);
    assertEquals(Code.DEADLINE_EXCEEDED, error.code());
    assertEquals(1, server.subscribed.size());
  }

  @Test
  void pollReturnsEmptyHandedInTime() {
    server.says(null, events(1), events());
    Subscription subscription = client.subscribe("s1");
    assertEquals(1, subscription.poll(Duration.ofSeconds(10)).orElseThrow().getSeq());
    while (subscription.heartbeats() == 0) {
      assertTrue(subscription.poll(Duration.ofMillis(10)).isEmpty());
    }
    assertTrue(subscription.caughtUp());
    assertFalse(subscription.isOver());
    subscription.close();
  }

  @Test
  void cancelWakesTheReaderAndReachesTheServer() throws InterruptedException {
    server.says(null, events(1));
    Subscription subscription = client.subscribe("s1");
    subscription.next();
    Thread other = new Thread(subscription::cancel);
    other.start();
    SessiondException error = assertThrows(SessiondException.class, subscription::next);
    assertEquals(Code.CANCELLED, error.code());
    assertTrue(server.left.await(5, TimeUnit.SECONDS));
    other.join();
  }

  @Test
  void anInterruptEndsItAndIsKept() throws InterruptedException {
    server.says(null, events(1));
    Subscription subscription = client.subscribe("s1");
    subscription.next();
    Thread.currentThread().interrupt();
    SessiondException error = assertThrows(SessiondException.class, subscription::next);
    assertTrue(Thread.interrupted());
    assertEquals(Code.CANCELLED, error.code());
    assertTrue(server.left.await(5, TimeUnit.SECONDS));
  }

  @Test
  void retriedCallKeepsItsRequestId() {
    server.refuses(Status.UNAVAILABLE, Status.UNAVAILABLE);
    SendRequest request = SendRequest.newBuilder().setText("once").build();
    SendResponse response = client.retry(SessionServiceGrpc.getSendMethod(), request);
    assertEquals("m1", response.getMessageId());
    assertEquals(3, server.sent.size());
    assertEquals(1, server.sent.stream().distinct().count());
    assertEquals(36, server.sent.get(0).getRequestId().length());
  }

  @Test
  void refusalIsNotTriedAgain() {
    server.refuses(Status.FAILED_PRECONDITION);
    SendRequest request = SendRequest.newBuilder().setRequestId("mine").build();
    SessiondException error =
        assertThrows(
            SessiondException.class,
            () -> client.retry(SessionServiceGrpc.getSendMethod(), request));
    assertEquals(Code.FAILED_PRECONDITION, error.code());
    assertEquals(List.of("mine"), server.sent.stream().map(r -> r.getRequestId()).toList());
  }

  @Test
  void aCallThatChangesNothingHasNoRequestId() {
    GetSessionRequest request = GetSessionRequest.getDefaultInstance();
    assertThrows(
        IllegalArgumentException.class,
        () -> client.retry(SessionServiceGrpc.getGetSessionMethod(), request));
  }

  @Test
  void nobodyThereIsUnavailable() {
    try (SessiondClient alone = SessiondClient.connect(Connection.to("/no/such.sock"))) {
      GetSessionRequest request = GetSessionRequest.getDefaultInstance();
      SessiondException error =
          assertThrows(
              SessiondException.class,
              () -> alone.call(SessionServiceGrpc.getGetSessionMethod(), request));
      assertEquals(Code.UNAVAILABLE, error.code());
      assertTrue(error.description().contains("No such file"), error.description());
    }
  }
}
