import assert from "node:assert/strict";
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const program = fileURLToPath(new URL("../examples/tail.js", import.meta.url));

function start(...options: string[]): ChildProcessWithoutNullStreams {
  return spawn(process.execPath, [program, ...options]);
}

async function ended(tail: ChildProcessWithoutNullStreams): Promise<[number, string, string]> {
  const [out, err, exit] = await Promise.all([text(tail.stdout), text(tail.stderr), once(tail, "exit")]);
  return [exit[0] as number, out, err];
}

test("numbers that make no sense are wrong usage", async () => {
  for (const wrong of ["--count=-3", "--count=0", "--count=1.5", "--count=", "--after=-1"]) {
    const [code, out, err] = await ended(start("--session", "s", wrong));
    assert.deepEqual([code, out], [2, ""], wrong);
    assert.match(err, /usage: tail/);
  }
});

test("help is no error", async () => {
  const [code, out, err] = await ended(start("--help"));
  assert.deepEqual([code, err], [0, ""]);
  assert.match(out, /^usage: tail/);
});

test("what can't be connected to is one line", async () => {
  for (const wrong of ["--address=127.0.0.1:99999", "--tls-ca=/no/such/ca.pem"]) {
    const [code, out, err] = await ended(start("--session", "s", "--address", "https://127.0.0.1:1", wrong));
    assert.deepEqual([code, out, err.split("\n").length], [2, "", 2], err);
  }
});

test("a signal during the first call ends it at once", { timeout: 20_000 }, async () => {
  const path = join(mkdtempSync(join(tmpdir(), "sessiond-")), "s");
  const mute = createServer().listen(path);
  const tail = start("--address", path, "--session", "s");
  const end = ended(tail);
  await once(mute, "connection");
  tail.kill("SIGINT");
  assert.deepEqual((await end).slice(0, 2), [0, '{"end":"CANCELLED"}\n']);
  mute.close();
});

test("a reader that left is no crash", async () => {
  const tail = start("--session", "s", "--address", "/no/such/socket");
  tail.stdout.destroy();
  const [err, exit] = await Promise.all([text(tail.stderr), once(tail, "exit")]);
  assert.deepEqual([exit[0], err], [141, ""]);
});
