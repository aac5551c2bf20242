package dev.sessiond.client;

import com.google.protobuf.ByteString;
import dev.sessiond.v1.Attachment;
import dev.sessiond.v1.AttachmentServiceGrpc;
import dev.sessiond.v1.ReadAttachmentRequest;
import dev.sessiond.v1.ReadAttachmentResponse;
import dev.sessiond.v1.WriteAttachmentRequest;
import io.grpc.CallOptions;
import io.grpc.Context;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.concurrent.TimeUnit;

/** Moves attachments in chunks; a chunk that found no server is moved again. */
public final class Attachments {
  /** The largest chunk that is sent, in bytes. */
  public static final int MAX_CHUNK_BYTES = 1 << 20;

  private static final int CHUNK_BYTES = MAX_CHUNK_BYTES / 4;
  private static final long FAR = TimeUnit.DAYS.toNanos(365);

  private final ManagedChannel channel;

  Attachments(ManagedChannel channel) {
    this.channel = channel;
  }

  /**
   * Uploads an attachment for the messages of a session. Its ref goes into a message's {@code
   * attachment_refs}.
   *
   * @param sessionId which session
   * @param content read to its end, but not closed
   * @param mediaType {@code image/png}, {@code text/plain}...
   * @param filename a name for people
   * @return the attachment
   * @throws IOException if {@code content} can't be read
   * @throws SessiondException if the server refused it
   */
  public Attachment upload(String sessionId, InputStream content, String mediaType, String filename)
      throws IOException {
    return upload(sessionId, content, mediaType, filename, CHUNK_BYTES);
  }

  /**
   * Uploads an attachment for the messages of a session.
   *
   * @param sessionId which session
   * @param content read to its end, but not closed
   * @param mediaType {@code image/png}, {@code text/plain}...
   * @param filename a name for people
   * @param chunkBytes how much goes with one call, at most {@link #MAX_CHUNK_BYTES}
   * @return the attachment
   * @throws IOException if {@code content} can't be read
   * @throws SessiondException if the server refused it
   */
  public Attachment upload(
      String sessionId, InputStream content, String mediaType, String filename, int chunkBytes)
      throws IOException {
    int size = Math.max(1, Math.min(chunkBytes, MAX_CHUNK_BYTES));
    MessageDigest digest = sha256();
    WriteAttachmentRequest.Builder request =
        WriteAttachmentRequest.newBuilder()
            .setSessionId(sessionId)
            .setUploadId(RequestIds.newRequestId());
    byte[] chunk = content.readNBytes(size);
    while (true) {
      byte[] following = chunk.length < size ? new byte[0] : content.readNBytes(size);
      digest.update(chunk);
      request.setData(ByteString.copyFrom(chunk));
      if (following.length == 0) {
        request.setFinish(true).setSha256(hex(digest));
        return write(request.setMediaType(mediaType).setFilename(filename).build());
      }
      write(request.build());
      request.setOffset(request.getOffset() + chunk.length);
      chunk = following;
    }
  }

  /**
   * Downloads an attachment.
   *
   * @param sessionId which session
   * @param ref the attachment's ref
   * @return the content, checked against its ref
   * @throws SessiondException if there is no such attachment, or {@code DATA_LOSS} if the content
   *     is not what the ref says
   */
  public byte[] download(String sessionId, String ref) {
    ByteArrayOutputStream content = new ByteArrayOutputStream();
    try {
      download(sessionId, ref, content);
    } catch (IOException e) {
      throw new UncheckedIOException(e); // A byte array takes everything.
    }
    return content.toByteArray();
  }

  /**
   * Downloads an attachment, going on where it was when the connection is cut.
   *
   * @param sessionId which session
   * @param ref the attachment's ref
   * @param out is given one chunk after another, and not closed
   * @throws IOException if {@code out} can't be written
   * @throws SessiondException if there is no such attachment, or {@code DATA_LOSS}, at the end, if
   *     the content is not what the ref says
   */
  public void download(String sessionId, String ref, OutputStream out) throws IOException {
    Download download = new Download(sessionId, ref, out);
    Patience patience = new Patience(channel);
    while (!download.isWhole(patience)) {
      // It goes on at the offset reached.
    }
    if (!hex(download.digest).equals(ref)) {
      throw SessiondException.of(
          Status.DATA_LOSS.withDescription("the content is not that of " + ref));
    }
  }

  private Attachment write(WriteAttachmentRequest request) {
    Patience patience = new Patience(channel);
    while (true) {
      CallOptions options =
          CallOptions.DEFAULT.withDeadlineAfter(
              SessiondClient.DEFAULT_DEADLINE.toNanos(), TimeUnit.NANOSECONDS);
      try {
        return ClientCalls.blockingUnaryCall(
                channel, AttachmentServiceGrpc.getWriteAttachmentMethod(), options, request)
            .getAttachment();
      } catch (StatusRuntimeException e) {
        patience.waitOrThrow(SessiondException.of(e), System.nanoTime() + FAR);
      }
    }
  }

  private static MessageDigest sha256() {
    try {
      return MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException e) {
      throw new AssertionError("every Java has SHA-256", e);
    }
  }

  private static String hex(MessageDigest digest) {
    return HexFormat.of().formatHex(digest.digest());
  }

  private final class Download {
    private final String sessionId;
    private final String ref;
    private final OutputStream out;
    private final MessageDigest digest = sha256();
    private long offset;

    Download(String sessionId, String ref, OutputStream out) {
      this.sessionId = sessionId;
      this.ref = ref;
      this.out = out;
    }

    /** Reads until the end, or until a cut that may heal. */
    boolean isWhole(Patience patience) throws IOException {
      ReadAttachmentRequest request =
          ReadAttachmentRequest.newBuilder()
              .setSessionId(sessionId)
              .setRef(ref)
              .setOffset(offset)
              .build();
      Context.CancellableContext context = Context.current().withCancellation();
      Context outside = context.attach();
      try {
        Iterator<ReadAttachmentResponse> chunks =
            ClientCalls.blockingServerStreamingCall(
                channel,
                AttachmentServiceGrpc.getReadAttachmentMethod(),
                CallOptions.DEFAULT,
                request);
        while (chunks.hasNext()) {
          take(chunks.next().getData().toByteArray());
          patience.reset();
        }
        return true;
      } catch (StatusRuntimeException e) {
        patience.waitOrThrow(SessiondException.of(e), System.nanoTime() + FAR);
        return false;
      } finally {
        context.detach(outside);
        context.cancel(null);
      }
    }

    private void take(byte[] chunk) throws IOException {
      out.write(chunk);
      digest.update(chunk);
      offset += chunk.length;
    }
  }
}
