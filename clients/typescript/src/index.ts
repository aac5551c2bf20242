/**
 * Client of sessiond, the gRPC service that hosts coding-agent sessions.
 *
 * `createSessiondClient` finds the daemon and gives typed calls; `client.subscribe` is a stream of events that
 * outlives cut connections and restarts of the daemon. All messages of the contract are exported too.
 */
export { createSessiondClient, type SessiondClient, type ClientOptions } from "./client.js";
export { discover, dataDir, runtimeDir, type Endpoint } from "./endpoint.js";
export { SessiondError, codeName, hasReason, type FieldViolation } from "./errors.js";
export { mutate, newRequestId } from "./retry.js";
export { Subscription, type SubscribeOptions } from "./subscribe.js";
export { CHUNK_BYTES, type Upload } from "./attachments.js";
export { kindOf } from "./event.js";
export { Code } from "@connectrpc/connect";

export * from "#gen/sessiond/v1/session_pb.js";
export * from "#gen/sessiond/v1/event_pb.js";
export * from "#gen/sessiond/v1/session_service_pb.js";
export * from "#gen/sessiond/v1/attachment_service_pb.js";
export * from "#gen/sessiond/v1/server_service_pb.js";
export * from "#gen/sessiond/v1/error_reason_pb.js";
