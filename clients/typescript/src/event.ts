import { type Event, EventSchema } from "#gen/sessiond/v1/event_pb.js";

const names = new Map(EventSchema.fields.map((field) => [field.localName, field.name]));

/** Names an event's body as the contract does (`assistant_text`), or `unknown` when this client doesn't know it. */
export function kindOf(event: Event): string {
  const known = event.body.case;
  return known === undefined ? "unknown" : (names.get(known) ?? "unknown");
}
