import { setTimeout as sleep } from "node:timers/promises";
import { type Client, Code } from "@connectrpc/connect";
import { ErrorReason } from "#gen/sessiond/v1/error_reason_pb.js";
import type { Event } from "#gen/sessiond/v1/event_pb.js";
import type { SessionService, SubscribeResponse } from "#gen/sessiond/v1/session_service_pb.js";
import { mayHeal, SessiondError } from "./errors.js";
import { Pace } from "./retry.js";

/** Three of the daemon's heartbeats. */
const WATCHDOG_MS = 45_000;
const MAX_GUESSES = 10;

export interface SubscribeOptions {
  /** Begins after an event that is known already: a stored `lastSeq`. Default 0n, everything. */
  afterSeq?: bigint;
  /** Guards a stored `afterSeq`: the `transcriptId` that was stored with it. */
  transcriptId?: string;
  /** Ends the subscription with a CANCELLED error. */
  signal?: AbortSignal;
  /** Ends the subscription with a DEADLINE_EXCEEDED error, over all connections together. Default: never. */
  timeoutMs?: number;
  /** How long a silence counts as a cut connection. Default 45 000. */
  watchdogMs?: number;
  /** false: the first error ends it, whatever it is. */
  resume?: boolean;
  /** Hears of every connection that was lost and will be made again. */
  onLost?: (error: SessiondError) => void;
}

/**
 * The events of one session: history first, then live, each once and in order. A cut connection is made again
 * behind the scenes and goes on after the last event that was handed over.
 *
 * Iterate over it for events, or over `batches()` for whole responses, which is faster in bulk; one iteration at a
 * time. It ends when the session is deleted, or throws a SessiondError: CANCELLED or DEADLINE_EXCEEDED when the
 * caller did it, TRANSCRIPT_CHANGED, SEQ_IN_FUTURE, SESSION_NOT_FOUND and so on when the daemon did, DATA_LOSS when it
 * sent a gap or a repeat.
 */
export class Subscription implements AsyncIterable<Event> {
  /** The last event handed over: what to store, and to give as `afterSeq` later. */
  lastSeq: bigint;
  /** Belongs to `lastSeq`; empty before the first response. */
  transcriptId: string;
  /** The newest event there was when the last response was sent. */
  headSeq = 0n;
  /** The oldest event there is. */
  firstSeq = 0n;
  /** How many responses had no events. */
  heartbeats = 0;
  /** How many connections were lost and made again. */
  reconnects = 0;

  readonly #sessions: Client<typeof SessionService>;
  readonly #sessionId: string;
  readonly #options: SubscribeOptions;
  readonly #ended = new AbortController();
  readonly #pace = new Pace();
  #heard = false;
  #guesses = 0;

  constructor(sessions: Client<typeof SessionService>, sessionId: string, options: SubscribeOptions = {}) {
    this.#sessions = sessions;
    this.#sessionId = sessionId;
    this.#options = options;
    this.lastSeq = options.afterSeq ?? 0n;
    this.transcriptId = options.transcriptId ?? "";
  }

  /** Whether everything that existed at the last response was handed over. */
  get caughtUp(): boolean {
    return this.#heard && this.lastSeq >= this.headSeq;
  }

  /** Ends the subscription; the daemon hears of it at once. An iteration under way throws CANCELLED. */
  close(): void {
    this.#end(new SessiondError("the subscription was closed", Code.Canceled));
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Event> {
    for await (const response of this.#responses()) {
      for (const event of response.events) {
        this.#take(event);
        yield event;
      }
    }
  }

  /** The responses as they come, empty ones (heartbeats) too. */
  async *batches(): AsyncGenerator<SubscribeResponse> {
    for await (const response of this.#responses()) {
      const events = response.events;
      const good = events.findIndex((event) => !this.#accepts(event));
      if (good < 0) {
        yield response;
        continue;
      }
      const bad = events[good];
      response.events = events.slice(0, good);
      yield response;
      if (bad) this.#take(bad);
    }
  }

  #end(why: SessiondError): void {
    this.#ended.abort(why);
  }

  /** Moves the bookmark to the event, if that is the next one. */
  #accepts(event: Event): boolean {
    const next = event.seq === this.lastSeq + 1n || (this.lastSeq === 0n && event.seq === this.firstSeq);
    if (next) this.lastSeq = event.seq;
    return next;
  }

  #take(event: Event): void {
    if (!this.#accepts(event)) {
      throw new SessiondError(
        `the daemon sent event ${event.seq.toString()} after event ${this.lastSeq.toString()}`,
        Code.DataLoss,
      );
    }
  }

  /** The responses over as many connections as it takes. */
  async *#responses(): AsyncGenerator<SubscribeResponse> {
    const { signal, timeoutMs } = this.#options;
    const cancel = (): void => {
      this.close();
    };
    if (signal?.aborted) cancel();
    signal?.addEventListener("abort", cancel, { once: true });
    const timer =
      timeoutMs === undefined
        ? undefined
        : setTimeout(() => {
            this.#end(new SessiondError(`not done within ${timeoutMs} ms`, Code.DeadlineExceeded));
          }, timeoutMs);
    try {
      for (;;) {
        const failure = yield* this.#attempt();
        if (failure === undefined) return;
        await this.#recover(failure);
      }
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", cancel);
    }
  }

  /** One connection; returns what ended it, undefined for a good end. */
  async *#attempt(): AsyncGenerator<SubscribeResponse, SessiondError | undefined> {
    const attempt = new AbortController();
    const silence = this.#options.watchdogMs ?? WATCHDOG_MS;
    const silent = new SessiondError(
      `nothing heard for ${silence} ms, not even a heartbeat`,
      Code.Unavailable,
    );
    const watch = (): NodeJS.Timeout =>
      setTimeout(() => {
        attempt.abort(silent);
      }, silence);
    let watchdog = watch();
    const signal = AbortSignal.any([attempt.signal, this.#ended.signal]);
    try {
      const request = { sessionId: this.#sessionId, afterSeq: this.lastSeq, transcriptId: this.transcriptId };
      let fresh = true;
      for await (const response of this.#sessions.subscribe(request, { signal, timeoutMs: 0 })) {
        this.#accept(response, fresh);
        fresh = false;
        // Time in which the reader is busy is no silence of the daemon's.
        clearTimeout(watchdog);
        yield response;
        watchdog = watch();
      }
      return undefined;
    } catch (thrown) {
      return attempt.signal.aborted ? silent : SessiondError.of(thrown);
    } finally {
      clearTimeout(watchdog);
      attempt.abort();
    }
  }

  async #recover(failure: SessiondError): Promise<void> {
    this.#ended.signal.throwIfAborted();
    if (this.#options.resume === false || !this.#heals(failure)) throw failure;
    this.reconnects++;
    this.#options.onLost?.(failure);
    const delay = this.#pace.next(failure.retryAfterMs);
    await sleep(delay, undefined, { signal: this.#ended.signal }).catch(() => {
      this.#ended.signal.throwIfAborted();
    });
  }

  #heals(failure: SessiondError): boolean {
    const { heals, guess } = mayHeal(failure, this.#heard);
    return guess ? ++this.#guesses <= MAX_GUESSES : heals;
  }

  /** Takes note of where the transcript stands. */
  #accept(response: SubscribeResponse, fresh: boolean): void {
    if (this.transcriptId !== "" && response.transcriptId !== this.transcriptId) {
      throw new SessiondError(
        `the transcript is ${response.transcriptId}, not ${this.transcriptId} any more`,
        Code.FailedPrecondition,
        undefined,
        ErrorReason[ErrorReason.TRANSCRIPT_CHANGED],
      );
    }
    this.transcriptId = response.transcriptId;
    this.headSeq = response.headSeq;
    this.firstSeq = response.firstSeq;
    this.#heard = true;
    this.#guesses = 0;
    if (response.events.length === 0) this.heartbeats++;
    // A daemon that greets and fails, again and again, is not one that does well.
    if (response.events.length > 0 || !fresh) this.#pace.reset();
  }
}
