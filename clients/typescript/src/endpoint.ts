import { existsSync, readFileSync } from "node:fs";
import { isIPv4 } from "node:net";
import { homedir } from "node:os";
import { isAbsolute, join } from "node:path";

/** Where a daemon is and what it wants to see. What is left out is discovered. */
export interface Endpoint {
  /** `unix:///path`, `host:port` or `https://host:port`. */
  address?: string | undefined;
  /** The bearer token; it wins over `tokenFile`. Neither is sent over a unix socket. */
  token?: string | undefined;
  /** Holds the token; read again for every call. */
  tokenFile?: string | undefined;
  /** PEM file that a `https://` daemon is verified with; default: the system's roots. */
  tlsCa?: string | undefined;
  /** The client's own certificate and key, PEM files, for daemons that ask for one. */
  tlsCert?: string | undefined;
  tlsKey?: string | undefined;
}

type Environment = Record<string, string | undefined>;

/**
 * The folder with the daemon's socket, token and address.json: `$SESSIOND_RUNTIME_DIR`, else
 * `$XDG_RUNTIME_DIR/sessiond`, else `run` in the data folder.
 */
export function runtimeDir(env: Environment = process.env): string {
  if (env["SESSIOND_RUNTIME_DIR"]) return env["SESSIOND_RUNTIME_DIR"];
  if (env["XDG_RUNTIME_DIR"]) return join(env["XDG_RUNTIME_DIR"], "sessiond");
  return join(dataDir(env), "run");
}

/** The daemon's data folder: `$SESSIOND_DATA_DIR`, else `$XDG_DATA_HOME/sessiond`, else `~/.local/share/sessiond`. */
export function dataDir(env: Environment = process.env): string {
  if (env["SESSIOND_DATA_DIR"]) return env["SESSIOND_DATA_DIR"];
  if (env["XDG_DATA_HOME"]) return join(env["XDG_DATA_HOME"], "sessiond");
  return join(env["HOME"] ?? homedir(), ".local", "share", "sessiond");
}

/**
 * Fills in what `given` leaves out: from `SESSIOND_ADDRESS`, `SESSIOND_TOKEN` or `SESSIOND_TOKEN_FILE`,
 * `SESSIOND_TLS_CA`, `SESSIOND_TLS_CERT` and `SESSIOND_TLS_KEY`, else from what the running daemon wrote to its
 * runtime folder.
 */
export function discover(
  given: Endpoint = {},
  env: Environment = process.env,
): Endpoint & { address: string } {
  const folder = runtimeDir(env);
  const served = readServed(folder);
  const found = {
    ...given,
    address: given.address || env["SESSIOND_ADDRESS"] || servedAddress(served, folder),
  };
  if (!found.token && !found.tokenFile) found.token = env["SESSIOND_TOKEN"];
  if (!found.token && !found.tokenFile) {
    const standard = join(folder, "token");
    found.tokenFile =
      env["SESSIOND_TOKEN_FILE"] || served["token_file"] || (existsSync(standard) ? standard : undefined);
  }
  found.tlsCa ||= env["SESSIOND_TLS_CA"] || served["tls_ca"];
  found.tlsCert ||= env["SESSIOND_TLS_CERT"];
  found.tlsKey ||= env["SESSIOND_TLS_KEY"];
  return found;
}

function servedAddress(served: Record<string, string>, folder: string): string {
  if (served["unix"]) return served["unix"];
  const tcp = served["tcp"];
  if (tcp) return served["tls_ca"] && !tcp.includes("://") ? `https://${tcp}` : tcp;
  return `unix://${join(folder, "sessiond.sock")}`;
}

function readServed(folder: string): Record<string, string> {
  try {
    const parsed: unknown = JSON.parse(readFileSync(join(folder, "address.json"), "utf8"));
    if (typeof parsed !== "object" || parsed === null) return {};
    return Object.fromEntries(Object.entries(parsed).filter(([, value]) => typeof value === "string"));
  } catch {
    return {};
  }
}

/** An address in the words of the transport. */
export interface Target {
  /** Of the HTTP/2 connection: http://host:port, https://host:port, or http://localhost for a socket. */
  baseUrl: string;
  /** Path of the unix socket. */
  socket?: string;
  /** Whether a token stays on this machine or is encrypted on its way. */
  mayCarryToken: boolean;
}

/** Throws a TypeError that says how to write an address. */
export function parseAddress(address: string): Target {
  const path = address.startsWith("/") ? address : /^unix:(?:\/\/)?(.*)$/s.exec(address)?.[1];
  if (path !== undefined) {
    if (!isAbsolute(path)) throw badAddress(address);
    return { baseUrl: "http://localhost", socket: path, mayCarryToken: true };
  }
  const match = /^(https?:\/\/)?(\[[0-9a-fA-F:.]+\]|[^:/[\]\s]+):(\d{1,5})\/?$/.exec(address);
  const [host, port = ""] = [match?.[2], match?.[3]];
  if (host === undefined || !(Number(port) >= 1 && Number(port) <= 65_535)) throw badAddress(address);
  const secure = match?.[1] === "https://";
  return {
    baseUrl: `${secure ? "https" : "http"}://${host}:${port}`,
    mayCarryToken: secure || isLoopback(host),
  };
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "[::1]" || (isIPv4(host) && host.startsWith("127."));
}

function badAddress(address: string): TypeError {
  return new TypeError(
    `${JSON.stringify(address)} is not an address: write unix:///path, host:port or https://host:port`,
  );
}
