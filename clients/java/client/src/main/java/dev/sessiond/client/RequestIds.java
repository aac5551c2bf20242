package dev.sessiond.client;

import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Message;
import java.util.UUID;

/**
 * The ids that make repeats of a call one: the server carries out a call once, however often it
 * comes with the same {@code request_id} and content.
 */
public final class RequestIds {
  private static final String FIELD = "request_id";

  private RequestIds() {}

  /**
   * Returns a random id.
   *
   * @return the text of a random UUID
   */
  public static String newRequestId() {
    return UUID.randomUUID().toString();
  }

  /**
   * Returns the request with an id: its own, or a random one when it has none.
   *
   * @param <R> the request's type
   * @param request a request that changes something
   * @return the same content, with an id
   * @throws IllegalArgumentException if requests of this type have none, since they change nothing
   */
  public static <R extends Message> R named(R request) {
    FieldDescriptor field = request.getDescriptorForType().findFieldByName(FIELD);
    if (field == null) {
      String name = request.getDescriptorForType().getName();
      throw new IllegalArgumentException(name + " has no request_id: it changes nothing");
    }
    if (!request.getField(field).equals("")) {
      return request;
    }
    @SuppressWarnings("unchecked") // A builder of a message builds messages of its type.
    R named = (R) request.toBuilder().setField(field, newRequestId()).build();
    return named;
  }
}
