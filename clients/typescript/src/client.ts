import { readFileSync } from "node:fs";
import type { SecureClientSessionOptions } from "node:http2";
import { connect } from "node:net";
import { type Client, Code, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { AttachmentService } from "#gen/sessiond/v1/attachment_service_pb.js";
import { ServerService } from "#gen/sessiond/v1/server_service_pb.js";
import type { Attachment } from "#gen/sessiond/v1/session_pb.js";
import { SessionService } from "#gen/sessiond/v1/session_service_pb.js";
import { type Upload, download, upload } from "./attachments.js";
import { discover, type Endpoint, parseAddress, type Target } from "./endpoint.js";
import { SessiondError } from "./errors.js";
import { DEFAULT_TIMEOUT_MS } from "./retry.js";
import { type SubscribeOptions, Subscription } from "./subscribe.js";

const MAX_RECEIVE = 16 << 20;
const WINDOW = 4 << 20;

/** `interceptors` see every call, outside of the client's own. */
export interface ClientOptions extends Endpoint {
  interceptors?: Interceptor[];
}

/** A connection to one daemon. Its calls fail with SessiondError; unary ones get 30 s unless they say otherwise. */
export interface SessiondClient {
  readonly sessions: Client<typeof SessionService>;
  readonly attachments: Client<typeof AttachmentService>;
  readonly server: Client<typeof ServerService>;
  /** The events of a session after `afterSeq`: history, then live, each once and in order, over any cut. */
  subscribe(sessionId: string, options?: SubscribeOptions): Subscription;
  /** Sends an attachment in chunks; its `ref` goes into `send`. */
  upload(sessionId: string, content: Uint8Array, about?: Upload): Promise<Attachment>;
  /** Yields an attachment's content and, at its end, checks that it is what `ref` says. */
  download(sessionId: string, ref: string, options?: { signal?: AbortSignal }): AsyncGenerator<Uint8Array>;
  /** Ends the connection and every call on it. */
  close(): void;
}

/**
 * Makes a client of the daemon that the options name, or else of the one that `discover` finds. Nothing is
 * connected before the first call. Throws a TypeError for an address that makes no sense.
 */
export function createSessiondClient(options: ClientOptions = {}): SessiondClient {
  const endpoint = discover(options);
  const target = parseAddress(endpoint.address);
  const token = tokenOf(endpoint, target);
  const session = new Http2SessionManager(
    target.baseUrl,
    { pingIntervalMs: 20_000, pingTimeoutMs: 10_000, pingIdleConnection: true },
    sessionOptions(endpoint, target),
  );
  const transport = createGrpcTransport({
    baseUrl: target.baseUrl,
    sessionManager: session,
    readMaxBytes: MAX_RECEIVE,
    defaultTimeoutMs: DEFAULT_TIMEOUT_MS,
    interceptors: [...(options.interceptors ?? []), typedErrors, ...(token ? [authorized(token)] : [])],
  });
  const sessions = createClient(SessionService, transport);
  const attachments = createClient(AttachmentService, transport);
  return {
    sessions,
    attachments,
    server: createClient(ServerService, transport),
    subscribe: (sessionId, wanted) => new Subscription(sessions, sessionId, wanted),
    upload: (sessionId, content, about) => upload(attachments, sessionId, content, about),
    download: (sessionId, ref, wanted) => download(attachments, sessionId, ref, wanted),
    close: () => {
      session.abort();
    },
  };
}

function sessionOptions(endpoint: Endpoint, target: Target): SecureClientSessionOptions {
  const options: SecureClientSessionOptions = { settings: { initialWindowSize: WINDOW } };
  const { socket } = target;
  if (socket !== undefined) return { ...options, createConnection: () => connect(socket) };
  if (endpoint.tlsCa) options.ca = readFileSync(endpoint.tlsCa);
  if (endpoint.tlsCert) options.cert = readFileSync(endpoint.tlsCert);
  if (endpoint.tlsKey) options.key = readFileSync(endpoint.tlsKey);
  return options;
}

/** What gives the token of the next call; a file is read each time, so a new token needs no new client. */
function tokenOf(endpoint: Endpoint, target: Target): (() => string) | undefined {
  const { token, tokenFile } = endpoint;
  if (target.socket !== undefined || (!token && !tokenFile)) return undefined;
  if (!target.mayCarryToken) {
    throw new TypeError(
      `the token would cross the network in the clear: write https://${new URL(target.baseUrl).host}`,
    );
  }
  return () => token || readToken(tokenFile ?? "");
}

function readToken(file: string): string {
  let token: string;
  try {
    token = readFileSync(file, "utf8").trim();
  } catch (thrown) {
    // Of its own kind at once: its ENOENT is not that of a socket, which a daemon may yet make.
    const why = thrown instanceof Error ? thrown.message : String(thrown);
    throw new SessiondError(`the token file ${file} can't be read: ${why}`, Code.Unauthenticated);
  }
  if (!token) throw new SessiondError(`the token file is empty: ${file}`, Code.Unauthenticated);
  return token;
}

function authorized(token: () => string): Interceptor {
  return (next) => (request) => {
    request.header.set("authorization", `Bearer ${token()}`);
    return next(request);
  };
}

const typedErrors: Interceptor = (next) => async (request) => {
  try {
    const response = await next(request);
    if (!response.stream) return response;
    return { ...response, message: typed(response.message) };
  } catch (thrown) {
    throw SessiondError.of(thrown);
  }
};

async function* typed<Message>(messages: AsyncIterable<Message>): AsyncGenerator<Message> {
  try {
    yield* messages;
  } catch (thrown) {
    throw SessiondError.of(thrown);
  }
}
