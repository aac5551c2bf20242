import assert from "node:assert/strict";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Code } from "@connectrpc/connect";
import { createSessiondClient } from "../src/client.js";
import { discover, parseAddress, runtimeDir } from "../src/endpoint.js";
import { SessiondError } from "../src/errors.js";
import { mutate } from "../src/retry.js";

function folderWith(files: Record<string, string>): { folder: string; env: Record<string, string> } {
  const folder = mkdtempSync(join(tmpdir(), "sessiond-"));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
  return { folder, env: { SESSIOND_RUNTIME_DIR: folder } };
}

test("the address is the first that is there", () => {
  const both = folderWith({ "address.json": '{"unix":"unix:/a.sock","tcp":"h:3"}' });
  assert.equal(discover({ address: "h:1" }, { ...both.env, SESSIOND_ADDRESS: "h:2" }).address, "h:1");
  assert.equal(discover({ address: "" }, { ...both.env, SESSIOND_ADDRESS: "h:2" }).address, "h:2");
  assert.equal(discover({}, both.env).address, "unix:/a.sock");
  assert.equal(discover({}, folderWith({ "address.json": '{"tcp":"h:3"}' }).env).address, "h:3");
  const tls = folderWith({ "address.json": '{"tcp":"h:3","tls_ca":"/ca"}' });
  assert.equal(discover({}, tls.env).address, "https://h:3");
  assert.equal(discover({}, tls.env).tlsCa, "/ca");
  for (const broken of [{}, { "address.json": "{" }, { "address.json": '{"unix":1}' }]) {
    const { folder, env } = folderWith(broken);
    assert.equal(discover({}, env).address, `unix://${folder}/sessiond.sock`);
  }
});

test("the token is the first that is there", () => {
  const { folder, env } = folderWith({ token: "x" });
  assert.equal(discover({}, folderWith({}).env).tokenFile, undefined);
  assert.equal(discover({}, env).tokenFile, join(folder, "token"));
  const told = folderWith({ token: "x", "address.json": '{"token_file":"/told"}' });
  assert.equal(discover({}, told.env).tokenFile, "/told");
  assert.equal(discover({}, { ...told.env, SESSIOND_TOKEN_FILE: "/env" }).tokenFile, "/env");
  const text = discover({}, { ...told.env, SESSIOND_TOKEN: "text" });
  assert.deepEqual([text.token, text.tokenFile], ["text", undefined]);
  const own = discover({ tokenFile: "/mine" }, { ...told.env, SESSIOND_TOKEN: "text" });
  assert.deepEqual([own.token, own.tokenFile], [undefined, "/mine"]);
});

test("the runtime folder is the first that is told", () => {
  const env: Record<string, string> = { HOME: "/home/x", XDG_RUNTIME_DIR: "" };
  assert.equal(runtimeDir(env), "/home/x/.local/share/sessiond/run");
  assert.equal(runtimeDir({ ...env, XDG_DATA_HOME: "/xdg" }), "/xdg/sessiond/run");
  assert.equal(runtimeDir({ ...env, SESSIOND_DATA_DIR: "/data", XDG_DATA_HOME: "/xdg" }), "/data/run");
  assert.equal(runtimeDir({ XDG_RUNTIME_DIR: "/user", SESSIOND_DATA_DIR: "/data" }), "/user/sessiond");
});

test("addresses", () => {
  for (const unix of ["unix:///a/b", "unix:/a/b", "/a/b"]) assert.equal(parseAddress(unix).socket, "/a/b");
  assert.equal(parseAddress("localhost:7").baseUrl, "http://localhost:7");
  assert.equal(parseAddress("https://h:7/").baseUrl, "https://h:7");
  assert.equal(parseAddress("[::1]:7").baseUrl, "http://[::1]:7");
  for (const bad of [
    "",
    "host",
    "unix:relative",
    "unix://relative",
    ":7",
    "host:",
    "https://h/x:7",
    "a b:7",
    "h:0",
    "h:65536",
    "https://h:99999",
    "[::1]:0",
  ]) {
    assert.throws(() => parseAddress(bad), TypeError, bad);
  }
});

test("an unreadable token file is told at once", async () => {
  const tokenFile = join(folderWith({}).folder, "gone");
  const client = createSessiondClient({ address: "127.0.0.1:1", tokenFile });
  const told = (error: unknown): boolean =>
    error instanceof SessiondError &&
    error.code === Code.Unauthenticated &&
    error.message.includes(tokenFile) &&
    error.message.includes("ENOENT");
  await assert.rejects(client.server.getServerInfo({}), told);
  await assert.rejects(mutate(client.sessions.send, { sessionId: "s", text: "x" }), told);
  const subscription = client.subscribe("s", { timeoutMs: 2000 });
  await assert.rejects(subscription.batches().next(), told);
  assert.equal(subscription.reconnects, 0);
  client.close();
});

test("a token stays on the machine or is encrypted", () => {
  for (const address of ["127.0.0.1:7", "[::1]:7", "localhost:7", "https://example.test:7"]) {
    createSessiondClient({ address, token: "secret" }).close();
  }
  for (const address of ["example.test:7", "10.0.0.1:7"]) {
    assert.throws(
      () => createSessiondClient({ address, token: "secret" }),
      (error: Error) => error.message.includes(`https://${address}`) && !error.message.includes("secret"),
    );
  }
});
