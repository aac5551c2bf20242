package dev.sessiond.examples;

import com.google.gson.JsonObject;
import com.google.protobuf.Message;
import dev.sessiond.client.SessiondClient;
import dev.sessiond.client.SessiondException;
import dev.sessiond.v1.Attachment;
import dev.sessiond.v1.AttachmentServiceGrpc;
import dev.sessiond.v1.ServerServiceGrpc;
import dev.sessiond.v1.SessionServiceGrpc;
import io.grpc.MethodDescriptor;
import io.grpc.ServiceDescriptor;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;

/** What a step may ask for. */
final class Actions {
  private static final int PERIOD = 251;
  private static final List<ServiceDescriptor> SERVICES =
      List.of(
          SessionServiceGrpc.getServiceDescriptor(),
          AttachmentServiceGrpc.getServiceDescriptor(),
          ServerServiceGrpc.getServiceDescriptor());

  private Actions() {}

  static JsonObject run(SessiondClient client, Step step) throws IOException, InterruptedException {
    try {
      return switch (step.required("do")) {
        case "call" -> call(client, step);
        case "subscribe" -> new Watch(client, step).run();
        case "upload" -> upload(client, step);
        case "download" -> download(client, step);
        case "sleep" -> {
          Thread.sleep(step.millis("ms", 0).toMillis());
          yield new JsonObject();
        }
        default -> throw new IllegalArgumentException("there is no action " + step.required("do"));
      };
    } catch (SessiondException e) {
      JsonObject result = new JsonObject();
      result.add("error", Json.error(e));
      return result;
    }
  }

  private static JsonObject call(SessiondClient client, Step step) {
    MethodDescriptor<Message, Message> method = method(step.required("method"));
    Message.Builder request = prototype(method).newBuilderForType();
    step.element("request").ifPresent(json -> Json.merge(json, request));
    Duration deadline = step.millis("deadline_ms", 30_000);
    Message response =
        step.flag("retry", false)
            ? client.retry(method, request.build(), deadline)
            : client.call(method, request.build(), deadline);
    JsonObject result = new JsonObject();
    result.add("response", Json.message(response));
    return result;
  }

  @SuppressWarnings("unchecked") // Both sides of every call of the contract are messages.
  private static MethodDescriptor<Message, Message> method(String name) {
    return SERVICES.stream()
        .flatMap(service -> service.getMethods().stream())
        .filter(method -> name.equals(method.getBareMethodName()))
        .filter(method -> method.getType() == MethodDescriptor.MethodType.UNARY)
        .map(method -> (MethodDescriptor<Message, Message>) method)
        .findFirst()
        .orElseThrow(() -> new IllegalArgumentException("there is no method " + name));
  }

  private static Message prototype(MethodDescriptor<Message, Message> method) {
    MethodDescriptor.PrototypeMarshaller<Message> marshaller =
        (MethodDescriptor.PrototypeMarshaller<Message>) method.getRequestMarshaller();
    return marshaller.getMessagePrototype();
  }

  private static JsonObject upload(SessiondClient client, Step step) throws IOException {
    byte[] content = new byte[step.number("size").orElse(0L).intValue()];
    for (int i = 0; i < content.length; i++) {
      content[i] = (byte) (i % PERIOD);
    }
    int chunkBytes = step.number("chunk_bytes").orElse(262_144L).intValue();
    Attachment attachment =
        client
            .attachments()
            .upload(
                step.required("session_id"),
                new ByteArrayInputStream(content),
                step.text("media_type"),
                step.text("filename"),
                chunkBytes);
    JsonObject result = new JsonObject();
    result.addProperty("ref", attachment.getRef());
    result.addProperty("size_bytes", Long.toString(attachment.getSizeBytes()));
    result.addProperty("chunks", Math.max(1, (content.length + chunkBytes - 1) / chunkBytes));
    return result;
  }

  private static JsonObject download(SessiondClient client, Step step) throws IOException {
    Tally tally = new Tally();
    client.attachments().download(step.required("session_id"), step.required("ref"), tally);
    JsonObject result = new JsonObject();
    result.addProperty("size_bytes", Long.toString(tally.size));
    result.addProperty("sha256", hex(tally.digest));
    result.addProperty("chunks", tally.chunks);
    return result;
  }

  static MessageDigest sha256() {
    try {
      return MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException e) {
      throw new AssertionError("every Java has SHA-256", e);
    }
  }

  static String hex(MessageDigest digest) {
    return HexFormat.of().formatHex(digest.digest());
  }

  /** Counts what is written to it. */
  private static final class Tally extends OutputStream {
    private final MessageDigest digest = sha256();
    private long size;
    private int chunks;

    @Override
    public void write(int single) {
      write(new byte[] {(byte) single}, 0, 1);
    }

    @Override
    public void write(byte[] chunk, int offset, int length) {
      digest.update(chunk, offset, length);
      size += length;
      chunks++;
    }
  }
}
