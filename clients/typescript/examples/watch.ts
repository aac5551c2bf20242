// One `subscribe` step of a conformance document: what it counts, and when it has seen enough.
import { createHash } from "node:crypto";
import { type Event, kindOf, type SessiondClient, type Subscription } from "@sessiond/client";

export type Json = Record<string, unknown>;

/** Any step; each action reads its own keys. */
export interface Step {
  id: string;
  do: string;
  method?: string;
  request?: Json;
  retry?: boolean;
  deadline_ms?: number;
  session_id?: string;
  after_seq?: string;
  transcript_id?: string;
  until?: {
    count?: number;
    seq?: string;
    kind?: string;
    heartbeats?: number;
    reconnects?: number;
    caught_up?: boolean;
  };
  cancel_after?: number;
  resume?: boolean;
  watchdog_ms?: number;
  announce?: (number | "caught_up")[];
  keep?: number;
  ref?: string;
  size?: number;
  chunk_bytes?: number;
  media_type?: string;
  filename?: string;
  ms?: number;
}

export interface Tools {
  say: (line: object) => void;
  eventJson: (event: Event | undefined) => Json;
  errorJson: (thrown: unknown) => Json;
}

export class Watch {
  readonly #step: Step;
  readonly #tools: Tools;
  readonly #subscription: Subscription;
  readonly #after: bigint;
  readonly #kinds: Record<string, number> = {};
  readonly #text = createHash("sha256");
  readonly #events: Json[] = [];
  #seq: bigint;
  #first: bigint | undefined;
  #last: Event | undefined;
  #counts = { count: 0, gaps: 0, repeats: 0, text_bytes: 0 };
  #cancelled = false;
  #announcedCatch = false;

  constructor(client: SessiondClient, step: Step, tools: Tools) {
    this.#step = step;
    this.#tools = tools;
    this.#after = this.#seq = BigInt(step.after_seq ?? "0");
    this.#subscription = client.subscribe(step.session_id ?? "", {
      afterSeq: this.#after,
      transcriptId: step.transcript_id ?? "",
      timeoutMs: step.deadline_ms ?? 60_000,
      resume: step.resume ?? true,
      ...(step.watchdog_ms === undefined ? {} : { watchdogMs: step.watchdog_ms }),
    });
  }

  async run(): Promise<Json> {
    try {
      return this.#result({ end: (await this.#read()) ? "DONE" : "OK" });
    } catch (thrown) {
      const error = this.#tools.errorJson(thrown);
      const cancelled = this.#cancelled && error["code"] === "CANCELLED";
      return this.#result(cancelled ? { end: "CANCELLED" } : { end: error["code"], error });
    }
  }

  /** Reads until it has seen enough (true) or the stream ends. */
  async #read(): Promise<boolean> {
    const { until = {}, announce = [] } = this.#step;
    for await (const response of this.#subscription.batches()) {
      for (const event of response.events) {
        this.#take(event);
        if (this.#enough(kindOf(event))) return true;
      }
      const caughtUp = this.#subscription.caughtUp;
      if (caughtUp && !this.#announcedCatch && announce.includes("caught_up")) {
        this.#announcedCatch = true;
        this.#tools.say({ progress: { step: this.#step.id, caught_up: true } });
      }
      if (this.#enough("") || (until.caught_up && caughtUp)) return true;
    }
    return false;
  }

  #take(event: Event): void {
    const counts = this.#counts;
    counts.count++;
    if (event.seq <= this.#seq) counts.repeats++;
    else if (event.seq !== this.#seq + 1n && (this.#first !== undefined || this.#after !== 0n)) counts.gaps++;
    this.#first ??= event.seq;
    this.#seq = event.seq;
    this.#last = event;
    const kind = kindOf(event);
    this.#kinds[kind] = (this.#kinds[kind] ?? 0) + 1;
    if (event.body.case === "assistantText") {
      const text = Buffer.from(event.body.value.delta);
      this.#text.update(text);
      counts.text_bytes += text.length;
    }
    if (counts.count <= (this.#step.keep ?? 0)) this.#events.push(this.#tools.eventJson(event));
    if (this.#step.announce?.includes(counts.count)) {
      this.#tools.say({ progress: { step: this.#step.id, events: counts.count } });
    }
    if (counts.count === this.#step.cancel_after) {
      this.#cancelled = true;
      this.#subscription.close();
    }
  }

  #enough(kind: string): boolean {
    const { until = {} } = this.#step;
    const { count = Infinity, seq, heartbeats = Infinity, reconnects = Infinity } = until;
    return (
      this.#counts.count >= count ||
      (seq !== undefined && this.#seq >= BigInt(seq)) ||
      (kind !== "" && kind === until.kind) ||
      this.#subscription.heartbeats >= heartbeats ||
      this.#subscription.reconnects >= reconnects
    );
  }

  #result(end: Json): Json {
    const { headSeq, firstSeq, transcriptId, caughtUp, heartbeats, reconnects } = this.#subscription;
    return {
      ...end,
      ...this.#counts,
      ...(this.#first === undefined ? {} : { first: this.#first.toString() }),
      last_seq: this.#seq.toString(),
      head_seq: headSeq.toString(),
      first_seq: firstSeq.toString(),
      transcript_id: transcriptId,
      caught_up: caughtUp,
      heartbeats,
      reconnects,
      kinds: this.#kinds,
      text_sha256: this.#text.digest("hex"),
      last: this.#tools.eventJson(this.#last),
      events: this.#events,
    };
  }
}
