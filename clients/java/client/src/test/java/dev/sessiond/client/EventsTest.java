package dev.sessiond.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.google.protobuf.ByteString;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.UnknownFieldSet;
import dev.sessiond.v1.Event;
import org.junit.jupiter.api.Test;

class EventsTest {
  @Test
  void everyBodyHasTheNameThatItHasInTheContract() {
    for (FieldDescriptor field : Event.getDescriptor().getOneofs().get(0).getFields()) {
      Event.Builder event = Event.newBuilder();
      event.setField(field, event.newBuilderForField(field).build());
      assertEquals(field.getName(), Events.kind(event.build()));
    }
  }

  @Test
  void aBodyOfALaterContractIsUnknownAndKeepsItsSeq() throws InvalidProtocolBufferException {
    UnknownFieldSet.Field body =
        UnknownFieldSet.Field.newBuilder().addLengthDelimited(ByteString.EMPTY).build();
    UnknownFieldSet later = UnknownFieldSet.newBuilder().addField(99, body).build();
    Event event =
        Event.parseFrom(
            Event.newBuilder().setSeq(7).setUnknownFields(later).build().toByteString());
    assertEquals("unknown", Events.kind(event));
    assertEquals(7, event.getSeq());
  }
}
