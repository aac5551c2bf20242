package sessiond

import sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"

// UnknownKind is the Kind of an event whose body this client does not know.
const UnknownKind = "unknown"

var bodyOneof = (*sessiondv1.Event)(nil).ProtoReflect().Descriptor().Oneofs().ByName("body")

// Kind names an event's body as the contract does: assistant_text, tool_started, ...
func Kind(event *sessiondv1.Event) string {
	if field := event.ProtoReflect().WhichOneof(bodyOneof); field != nil {
		return string(field.Name())
	}
	return UnknownKind
}
