import assert from "node:assert/strict";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, createRouterTransport } from "@connectrpc/connect";
import { ErrorInfoSchema, RetryInfoSchema } from "#gen/google/rpc/error_details_pb.js";
import { ErrorReason } from "#gen/sessiond/v1/error_reason_pb.js";
import {
  type SubscribeRequest,
  type SubscribeResponse,
  SessionService,
  SubscribeResponseSchema,
} from "#gen/sessiond/v1/session_service_pb.js";
import { codeName, hasReason, SessiondError } from "../src/errors.js";
import { mutate, Pace } from "../src/retry.js";
import { Subscription } from "../src/subscribe.js";

function refusal(code: Code, reason: string, retryMs?: number): ConnectError {
  const details = [{ desc: ErrorInfoSchema, value: { reason, domain: "sessiond", metadata: { k: "v" } } }];
  const delay = { seconds: 0n, nanos: (retryMs ?? 0) * 1e6 };
  const retry = retryMs === undefined ? [] : [{ desc: RetryInfoSchema, value: { retryDelay: delay } }];
  return new ConnectError("said so", code, undefined, [...(reason ? details : []), ...retry]);
}

function page(from: bigint, to: bigint): SubscribeResponse {
  const events = [];
  for (let seq = from; seq <= to; seq++) events.push({ seq });
  return create(SubscribeResponseSchema, { events, headSeq: to, firstSeq: 1n, transcriptId: "t" });
}

type Handler = (request: SubscribeRequest, signal: AbortSignal) => AsyncIterable<SubscribeResponse>;

function sessions(subscribe: Handler) {
  const transport = createRouterTransport(({ service }) => {
    service(SessionService, { subscribe: (request, { signal }) => subscribe(request, signal) });
  });
  return createClient(SessionService, transport);
}

test("errors are typed, and only ours are ours", () => {
  const error = SessiondError.of(refusal(Code.NotFound, "SESSION_NOT_FOUND", 250));
  assert.deepEqual([error.reason, error.info, error.retryAfterMs], ["SESSION_NOT_FOUND", { k: "v" }, 250]);
  assert.ok(hasReason(error, ErrorReason.SESSION_NOT_FOUND));
  assert.ok(!hasReason(error, ErrorReason.INTERNAL));
  assert.ok(error instanceof SessiondError && error instanceof ConnectError);
  assert.ok(!(new ConnectError("x") instanceof SessiondError));
  assert.equal(ConnectError.from(error), error);
  assert.equal(codeName(Code.Canceled), "CANCELLED");
  assert.equal(codeName(Code.DeadlineExceeded), "DEADLINE_EXCEEDED");
  const foreign = { desc: ErrorInfoSchema, value: { reason: "QUOTA", domain: "gateway.test" } };
  assert.equal(SessiondError.of(new ConnectError("x", Code.Unavailable, undefined, [foreign])).reason, "");
});

test("a socket that is not there yet counts as unavailable", () => {
  const cause = Object.assign(new Error("connect ENOENT"), { code: "ENOENT" });
  const error = SessiondError.of(new ConnectError("x", Code.Internal, undefined, undefined, cause));
  assert.equal(error.code, Code.Unavailable);
});

test("mutate repeats with one request id", async () => {
  const ids: (string | undefined)[] = [];
  const call = (request: { requestId?: string; text: string }): Promise<string> => {
    ids.push(request.requestId);
    if (ids.length < 3) return Promise.reject(refusal(Code.Unavailable, ""));
    return Promise.resolve(request.text);
  };
  assert.equal(await mutate(call, { text: "x" }), "x");
  assert.equal(new Set(ids).size, 1);
  assert.equal(ids.length, 3);
  assert.ok(ids[0]);
});

test("mutate does not wait for what the deadline rules out", async () => {
  const call = (): Promise<string> => Promise.reject(refusal(Code.Unavailable, "SERVER_DRAINING", 900));
  const started = Date.now();
  await assert.rejects(mutate(call, {}, { timeoutMs: 500 }), { reason: "SERVER_DRAINING" });
  assert.ok(Date.now() - started < 400);
});

test("the caller's signal ends the wait for another attempt as CANCELLED", async () => {
  const call = (): Promise<string> => Promise.reject(refusal(Code.Unavailable, "SERVER_DRAINING", 900));
  const cancelled = (error: unknown): boolean =>
    error instanceof SessiondError && error.code === Code.Canceled;
  await assert.rejects(mutate(call, {}, { signal: AbortSignal.timeout(50) }), SessiondError);
  const stop = new AbortController();
  setTimeout(() => {
    stop.abort();
  }, 50);
  await assert.rejects(mutate(call, {}, { signal: stop.signal }), cancelled);
});

test("a subscription goes on after its last event", async () => {
  const asked: SubscribeRequest[] = [];
  const client = sessions(async function* (request) {
    asked.push(request);
    await Promise.resolve();
    if (asked.length === 3) {
      yield page(request.afterSeq + 1n, 9n);
      return;
    }
    yield page(request.afterSeq + 1n, request.afterSeq + 3n);
    throw refusal(Code.Unavailable, "");
  });
  const lost: SessiondError[] = [];
  const subscription = new Subscription(client, "s", { onLost: (error) => lost.push(error) });
  const seen: bigint[] = [];
  for await (const event of subscription) seen.push(event.seq);
  assert.deepEqual(seen, [1n, 2n, 3n, 4n, 5n, 6n, 7n, 8n, 9n]);
  assert.deepEqual(
    asked.map(({ afterSeq, transcriptId }) => [afterSeq, transcriptId]),
    [
      [0n, ""],
      [3n, "t"],
      [6n, "t"],
    ],
  );
  assert.deepEqual([subscription.reconnects, lost.length, subscription.caughtUp], [2, 2, true]);
});

test("breaking out ends the stream and keeps the bookmark", { timeout: 5000 }, async () => {
  let gone = (): void => undefined;
  const ended = new Promise<void>((resolve) => (gone = resolve));
  const client = sessions(async function* (_, signal) {
    signal.addEventListener("abort", gone);
    yield page(1n, 2n);
    await ended;
  });
  const subscription = new Subscription(client, "s");
  for await (const event of subscription) {
    assert.equal(event.seq, 1n);
    break;
  }
  await ended;
  assert.equal(subscription.lastSeq, 1n);
});

test("the caller's signal ends it as CANCELLED", async () => {
  const client = sessions(async function* (_, signal) {
    yield page(1n, 1n);
    await new Promise((resolve) => {
      signal.addEventListener("abort", resolve);
    });
  });
  const stop = new AbortController();
  const subscription = new Subscription(client, "s", { signal: stop.signal });
  await assert.rejects(
    async () => {
      for await (const event of subscription) {
        assert.equal(event.seq, 1n);
        stop.abort();
      }
    },
    (error) => error instanceof SessiondError && error.code === Code.Canceled,
  );
});

test("the pace doubles up to five seconds", () => {
  const pace = new Pace();
  for (const ceiling of [100, 200, 400, 800, 1600, 3200, 5000, 5000]) {
    const delay = pace.next();
    assert.ok(
      delay >= ceiling * 0.8 && delay <= ceiling * 1.2,
      `${delay.toString()} around ${ceiling.toString()}`,
    );
  }
  assert.equal(pace.next(60_000), 60_000);
  pace.reset();
  assert.ok(pace.next() <= 120);
});
