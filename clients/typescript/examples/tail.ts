#!/usr/bin/env node
// Follows one session and prints a line of JSON per event, across cuts and restarts of the daemon.
import { parseArgs } from "node:util";
import {
  Code,
  codeName,
  createSessiondClient,
  type Event,
  kindOf,
  mutate,
  type SessiondClient,
  SessiondError,
} from "@sessiond/client";

const USAGE = `usage: tail [--address ADDR] [--token-file FILE] [--tls-ca FILE]
            [--session ID | --new --driver NAME --workspace DIR]
            [--after N] [--send TEXT] [--count N]`;

function options() {
  const text = { type: "string" } as const;
  const { values } = parseArgs({
    options: {
      address: text,
      "token-file": text,
      "tls-ca": text,
      session: text,
      new: { type: "boolean", default: false },
      driver: { type: "string", default: "echo" },
      workspace: { type: "string", default: process.cwd() },
      after: { type: "string", default: "0" },
      send: text,
      count: text,
      help: { type: "boolean", short: "h", default: false },
    },
  });
  if (values.help) return undefined;
  if ((values.session === undefined) !== values.new) throw new TypeError("give either --session ID or --new");
  const { after, count } = values;
  if (!/^\d+$/.test(after)) throw new TypeError(`--after ${after}: not a whole number`);
  if (count !== undefined && !/^0*[1-9]\d*$/.test(count)) {
    throw new TypeError(`--count ${count}: not a positive whole number`);
  }
  return { ...values, after: BigInt(after), count: count === undefined ? Infinity : Number(count) };
}

type Options = NonNullable<ReturnType<typeof options>>;

function say(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function lineOf(event: Event): object {
  const line = { seq: event.seq.toString(), kind: kindOf(event) };
  const body = event.body.value as Record<string, unknown> | undefined;
  const text = body?.["text"] || body?.["delta"];
  return typeof text === "string" ? { ...line, text } : line;
}

async function follow(client: SessiondClient, wanted: Options, signal: AbortSignal): Promise<string> {
  // A daemon that is not there is told at once, rather than waited for.
  await client.server.getServerInfo({}, { signal });
  let sessionId = wanted.session ?? "";
  if (wanted.new) {
    const { driver, workspace } = wanted;
    const created = await mutate(client.sessions.createSession, { driver, workspace }, { signal });
    sessionId = created.session?.sessionId ?? "";
  }
  if (wanted.send !== undefined) {
    await mutate(client.sessions.send, { sessionId, text: wanted.send }, { signal });
  }
  let printed = 0;
  for await (const event of client.subscribe(sessionId, { afterSeq: wanted.after, signal })) {
    say(lineOf(event));
    if (++printed === wanted.count) return "DONE";
  }
  return "OK";
}

async function run(wanted: Options): Promise<number> {
  let client: SessiondClient;
  try {
    client = createSessiondClient({
      address: wanted.address,
      tokenFile: wanted["token-file"],
      tlsCa: wanted["tls-ca"],
    });
  } catch (thrown) {
    complain(thrown);
    return 2;
  }
  const stop = new AbortController();
  for (const name of ["SIGINT", "SIGTERM"] as const) {
    process.once(name, () => {
      stop.abort();
    });
  }
  try {
    say({ end: await follow(client, wanted, stop.signal) });
    return 0;
  } catch (thrown) {
    const error = SessiondError.of(thrown);
    const code = codeName(error.code);
    if (error.code === Code.Canceled) {
      say({ end: code });
      return 0;
    }
    say({
      end: code,
      error: { code, reason: error.reason, message: error.rawMessage, metadata: error.info },
    });
    return 1;
  } finally {
    client.close();
  }
}

function complain(thrown: unknown): void {
  process.stderr.write(`tail: ${thrown instanceof Error ? thrown.message : String(thrown)}\n`);
}

async function main(): Promise<number> {
  let wanted: Options | undefined;
  try {
    wanted = options();
  } catch (thrown) {
    complain(thrown);
    process.stderr.write(`${USAGE}\n`);
    return 2;
  }
  if (wanted !== undefined) return run(wanted);
  process.stdout.write(`${USAGE}\n`);
  return 0;
}

process.stdout.on("error", (error: NodeJS.ErrnoException) => {
  // Whoever read has seen enough: quiet, and with the code that a shell reports for SIGPIPE.
  if (error.code === "EPIPE") process.exit(141);
  complain(error);
  process.exit(1);
});
process.exitCode = await main();
