use crate::v1::{Event, event::Body};

macro_rules! kinds {
    ($($variant:ident = $name:literal),* $(,)?) => {
        impl Event {
            /// What the event says: the name of its body in the proto, `assistant_text` for one, or
            /// `unknown` for a body that this crate does not know.
            #[must_use]
            pub fn kind(&self) -> &'static str {
                match &self.body {
                    None => "unknown",
                    $(Some(Body::$variant(_)) => $name,)*
                }
            }
        }
    };
}

kinds! {
    AssistantText = "assistant_text",
    Reasoning = "reasoning",
    ToolStarted = "tool_started",
    ToolUpdated = "tool_updated",
    ToolEnded = "tool_ended",
    StateChanged = "state_changed",
    UserMessage = "user_message",
    MessageQueued = "message_queued",
    MessageEdited = "message_edited",
    MessageMoved = "message_moved",
    MessageDropped = "message_dropped",
    PeerMessage = "peer_message",
    AttachmentAdded = "attachment_added",
    Retracted = "retracted",
    QuestionAsked = "question_asked",
    QuestionAnswered = "question_answered",
    QuestionWithdrawn = "question_withdrawn",
    SettingsChanged = "settings_changed",
    OptionsReported = "options_reported",
    TurnStarted = "turn_started",
    TurnEnded = "turn_ended",
    UsageReported = "usage_reported",
    LimitReported = "limit_reported",
    Compacted = "compacted",
    CommandQueued = "command_queued",
    CommandSent = "command_sent",
    CommandOutput = "command_output",
    CommandDropped = "command_dropped",
    Cleared = "cleared",
    Retrying = "retrying",
    PlanUpdated = "plan_updated",
    Notice = "notice",
    ProcessStarted = "process_started",
    ProcessAdopted = "process_adopted",
    ProcessExited = "process_exited",
    ErrorRaised = "error_raised",
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use prost_reflect::DescriptorPool;

    const DESCRIPTOR: &[u8] = include_bytes!("../proto/sessiond.binpb");

    #[test]
    fn every_body_of_the_contract_has_the_name_that_it_has_there() {
        let pool = DescriptorPool::decode(DESCRIPTOR).expect("the committed descriptor");
        let event = pool.get_message_by_name("sessiond.v1.Event").expect("an event");
        let bodies: Vec<_> =
            event.oneofs().flat_map(|oneof| oneof.fields().collect::<Vec<_>>()).collect();
        assert!(bodies.len() > 30, "{}", bodies.len());
        for field in bodies {
            let mut wire = Vec::new();
            prost::encoding::message::encode(field.number(), &(), &mut wire);
            let event = Event::decode(wire.as_slice()).expect("an event with an empty body");
            assert_eq!(event.kind(), field.name());
        }
    }

    #[test]
    fn a_body_of_a_later_contract_is_unknown_and_keeps_its_seq() {
        let mut wire = Event { seq: 7, ..Event::default() }.encode_to_vec();
        prost::encoding::message::encode(99, &(), &mut wire);
        let event = Event::decode(wire.as_slice()).expect("an event");
        assert_eq!((event.seq, event.kind()), (7, "unknown"));
    }
}
