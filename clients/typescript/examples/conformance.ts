// Carries out the steps of one conformance document; tests/clients/README.md describes it.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import {
  type DescMessage,
  type DescMethodUnary,
  fromJson,
  type JsonValue,
  type MessageShape,
  toJson,
} from "@bufbuild/protobuf";
import { reflect } from "@bufbuild/protobuf/reflect";
import type { CallOptions } from "@connectrpc/connect";
import {
  AttachmentService,
  codeName,
  createSessiondClient,
  type Event,
  EventSchema,
  kindOf,
  mutate,
  ServerService,
  type SessiondClient,
  SessiondError,
  SessionService,
} from "@sessiond/client";
import { type Json, type Step, Watch } from "./watch.js";

type Call = (request: object, options?: CallOptions) => Promise<MessageShape<DescMessage>>;

const services = [
  { schema: SessionService, of: (client: SessiondClient) => client.sessions },
  { schema: AttachmentService, of: (client: SessiondClient) => client.attachments },
  { schema: ServerService, of: (client: SessiondClient) => client.server },
];

function say(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function messageJson(schema: DescMessage, message: MessageShape<DescMessage>): JsonValue {
  return toJson(schema, message, { useProtoFieldName: true });
}

function eventJson(event: Event | undefined): Json {
  if (event === undefined) return {};
  const { requestId, ignorable, actor } = event;
  const field = EventSchema.fields.find((candidate) => candidate.localName === event.body.case);
  const known = field?.fieldKind === "message" ? reflect(EventSchema, event).get(field) : undefined;
  const body = known === undefined ? {} : messageJson(known.desc, known.message);
  return { seq: event.seq.toString(), kind: kindOf(event), request_id: requestId, ignorable, actor, body };
}

function errorJson(thrown: unknown): Json {
  const error = SessiondError.of(thrown);
  return {
    code: codeName(error.code),
    message: error.rawMessage,
    reason: error.reason,
    metadata: error.info,
    violations: error.violations,
    ...(error.retryAfterMs === undefined ? {} : { retry_delay_ms: error.retryAfterMs }),
  };
}

/** Puts in place of every "$path" what stands there in the results so far. */
function resolve(value: unknown, results: Json): unknown {
  if (Array.isArray(value)) return value.map((item) => resolve(item, results));
  if (typeof value === "object" && value !== null) {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolve(item, results)]));
  }
  if (typeof value !== "string" || !value.startsWith("$")) return value;
  let found: unknown = results;
  for (const part of value.slice(1).split(".")) found = (found as Json | undefined)?.[part];
  if (found === undefined) throw new Error(`nothing stands at ${value}`);
  return found;
}

async function call(client: SessiondClient, step: Step): Promise<Json> {
  for (const { schema, of } of services) {
    const method = schema.methods.find(
      (candidate): candidate is DescMethodUnary & typeof candidate =>
        candidate.methodKind === "unary" && candidate.name === step.method,
    );
    if (method) return outcome(unary(of(client), method), method, step);
  }
  throw new Error(`there is no unary call ${JSON.stringify(step.method)}`);
}

function unary(service: object, method: DescMethodUnary): Call {
  return (service as Record<string, Call>)[method.localName] as Call;
}

async function outcome(make: Call, method: DescMethodUnary, step: Step): Promise<Json> {
  const request = fromJson(method.input, (step.request ?? {}) as JsonValue);
  const options = { timeoutMs: step.deadline_ms ?? 30_000 };
  try {
    const response = await (step.retry ? mutate(make, request, options) : make(request, options));
    return { response: messageJson(method.output, response) };
  } catch (thrown) {
    return { error: errorJson(thrown) };
  }
}

async function upload(client: SessiondClient, step: Step): Promise<Json> {
  const content = Uint8Array.from({ length: step.size ?? 0 }, (_, i) => i % 251);
  try {
    const stored = await client.upload(step.session_id ?? "", content, {
      mediaType: step.media_type ?? "",
      filename: step.filename ?? "",
      chunkBytes: step.chunk_bytes ?? 262_144,
    });
    return { ref: stored.ref, size_bytes: stored.sizeBytes.toString() };
  } catch (thrown) {
    return { error: errorJson(thrown) };
  }
}

async function download(client: SessiondClient, step: Step): Promise<Json> {
  const digest = createHash("sha256");
  let [size, chunks] = [0, 0];
  try {
    for await (const data of client.download(step.session_id ?? "", step.ref ?? "")) {
      digest.update(data);
      size += data.length;
      chunks++;
    }
    return { size_bytes: size.toString(), sha256: digest.digest("hex"), chunks };
  } catch (thrown) {
    return { error: errorJson(thrown) };
  }
}

async function carryOut(client: SessiondClient, step: Step): Promise<Json> {
  switch (step.do) {
    case "call":
      return call(client, step);
    case "subscribe":
      return new Watch(client, step, { say, eventJson, errorJson }).run();
    case "upload":
      return upload(client, step);
    case "download":
      return download(client, step);
    case "sleep":
      await sleep(step.ms ?? 0);
      return {};
    default:
      throw new Error(`unknown action ${JSON.stringify(step.do)}`);
  }
}

async function run(): Promise<void> {
  const document = JSON.parse(readFileSync(process.argv[2] ?? 0, "utf8")) as {
    connection?: Record<string, string>;
    steps: Json[];
  };
  const given = document.connection ?? {};
  const client = createSessiondClient({
    address: given["address"],
    token: given["token"],
    tokenFile: given["token_file"],
    tlsCa: given["tls_ca"],
  });
  const results: Json = {};
  try {
    for (const raw of document.steps) {
      const step = resolve(raw, results) as Step;
      const started = performance.now();
      const result = await carryOut(client, step);
      results[step.id] = { ...result, elapsed_ms: Math.round(performance.now() - started) };
    }
  } finally {
    client.close();
  }
  say({ results });
}

try {
  await run();
} catch (thrown) {
  process.stderr.write(`conformance: ${thrown instanceof Error ? thrown.message : String(thrown)}\n`);
  process.exitCode = 1;
}
