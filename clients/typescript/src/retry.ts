import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { type CallOptions, Code } from "@connectrpc/connect";
import { SessiondError } from "./errors.js";

export const MAX_ATTEMPTS = 5;
export const DEFAULT_TIMEOUT_MS = 30_000;
const FIRST_MS = 100;
const MAX_MS = 5_000;

/** A fresh `requestId`, a random UUID. */
export function newRequestId(): string {
  return randomUUID();
}

/**
 * Makes a mutating call and, while the daemon is away (UNAVAILABLE), makes it again, at most five times within
 * `timeoutMs` (default 30 s). Every attempt carries the same `requestId`, made up when the request has none: the
 * daemon carries the call out once and answers a repetition as it did the first time.
 *
 *     const { messageId } = await mutate(client.sessions.send, { sessionId, text: "hello" });
 */
export async function mutate<Request extends { requestId?: string }, Response>(
  call: (request: Request, options?: CallOptions) => Promise<Response>,
  request: Request,
  options: CallOptions = {},
): Promise<Response> {
  const named = { ...request, requestId: request.requestId || newRequestId() };
  return attempts((timeoutMs) => call(named, { ...options, timeoutMs }), options);
}

/** Makes a call that is safe to repeat, and again while the daemon is away. */
export async function attempts<Response>(
  call: (timeoutMs: number) => Promise<Response>,
  options: CallOptions = {},
): Promise<Response> {
  const pace = new Pace();
  const deadline = Date.now() + (options.timeoutMs ?? DEFAULT_TIMEOUT_MS);
  for (let attempt = 1; ; attempt++) {
    try {
      return await call(Math.max(deadline - Date.now(), 1));
    } catch (thrown) {
      const error = SessiondError.of(thrown);
      if (error.code !== Code.Unavailable || attempt === MAX_ATTEMPTS) throw error;
      const delay = pace.next(error.retryAfterMs);
      if (Date.now() + delay >= deadline) throw error;
      await pause(delay, options);
    }
  }
}

/** Waits; the caller's signal ends it as it ends a call. */
export async function pause(ms: number, { signal }: { signal?: AbortSignal }): Promise<void> {
  try {
    await sleep(ms, undefined, signal ? { signal } : {});
  } catch (aborted) {
    throw SessiondError.of(aborted);
  }
}

/**
 * The time between attempts: 100 ms, doubling up to 5 s, spread so that the many clients of a restarted daemon do
 * not return at the same instant.
 */
export class Pace {
  #ceiling = FIRST_MS;

  reset(): void {
    this.#ceiling = FIRST_MS;
  }

  next(asked = 0): number {
    const delay = this.#ceiling * (0.8 + 0.4 * Math.random());
    this.#ceiling = Math.min(this.#ceiling * 2, MAX_MS);
    return Math.max(delay, asked);
  }
}
