//! What both programs need: protobuf in JSON, and errors in JSON.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, ReflectMessage, SerializeOptions,
};
use serde_json::{Map, Value, json};
use sessiond_client::{Code, Error, v1::Event};

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let descriptor: &[u8] = include_bytes!("../../proto/sessiond.binpb");
    DescriptorPool::decode(descriptor).expect("the committed descriptor is valid")
});

fn descriptor(name: &str) -> MessageDescriptor {
    let name = format!("sessiond.v1.{name}");
    POOL.get_message_by_name(&name).unwrap_or_else(|| panic!("{name} is not in the contract"))
}

fn to_value(message: &DynamicMessage) -> Value {
    let options = SerializeOptions::new().use_proto_field_name(true);
    message.serialize_with_options(serde_json::value::Serializer, &options).expect("messages are JSON")
}

/// A message as JSON, with the names of the proto.
#[allow(dead_code)]
pub fn message_to_json(name: &str, message: &impl Message) -> Value {
    let mut dynamic = DynamicMessage::new(descriptor(name));
    let bytes = message.encode_to_vec();
    dynamic.merge(bytes.as_slice()).expect("what was just encoded");
    to_value(&dynamic)
}

/// A message from JSON.
#[allow(dead_code)]
pub fn message_from_json<M: Message + Default>(name: &str, value: &Value) -> Result<M, String> {
    let dynamic =
        DynamicMessage::deserialize(descriptor(name), value).map_err(|e| format!("{name}: {e}"))?;
    dynamic.transcode_to().map_err(|e| format!("{name}: {e}"))
}

fn dynamic_body(event: &Event) -> Option<DynamicMessage> {
    let mut dynamic = DynamicMessage::new(descriptor("Event"));
    dynamic.merge(event.encode_to_vec().as_slice()).ok()?;
    let field = dynamic.descriptor().get_field_by_name(event.kind())?;
    match dynamic.get_field(&field).into_owned() {
        prost_reflect::Value::Message(body) => Some(body),
        _ => None,
    }
}

/// The body of an event as JSON; an object without keys when the body is not known.
#[allow(dead_code)]
pub fn body(event: &Event) -> Value {
    dynamic_body(event).map_or_else(|| json!({}), |body| to_value(&body))
}

/// The text of an event, when its body is of a kind that has one.
#[allow(dead_code)]
pub fn text(event: &Event) -> Option<String> {
    let body = dynamic_body(event)?;
    let field = ["text", "delta"].iter().find_map(|name| body.descriptor().get_field_by_name(name))?;
    body.get_field(&field).as_str().map(str::to_owned)
}

/// A code as gRPC spells it.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// An error as JSON.
pub fn error_to_json(error: &Error) -> Value {
    let violations = error.violations().iter();
    let violations: Vec<_> =
        violations.map(|v| json!({"field": v.field, "description": v.description})).collect();
    let mut object = Map::new();
    object.insert("code".into(), code_name(error.code()).into());
    object.insert("message".into(), error.message().into());
    object.insert("reason".into(), error.reason_name().into());
    object.insert("metadata".into(), json!(error.metadata()));
    object.insert("violations".into(), violations.into());
    if let Some(delay) = error.retry_delay() {
        object.insert(
            "retry_delay_ms".into(),
            json!(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
        );
    }
    object.into()
}
