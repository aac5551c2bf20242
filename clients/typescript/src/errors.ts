import { Code, ConnectError } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "#gen/google/rpc/error_details_pb.js";
import { ErrorReason } from "#gen/sessiond/v1/error_reason_pb.js";

const DOMAIN = "sessiond";
const BRAND = Symbol.for("sessiond.SessiondError");

/** A field of the request that is not acceptable, in the proto's spelling, and why. */
export interface FieldViolation {
  field: string;
  description: string;
}

/** How every call fails. `code` and `rawMessage` are Connect's; the rest is what the daemon said about it. */
export class SessiondError extends ConnectError {
  /**
   * A name of `ErrorReason`, such as `SESSION_NOT_FOUND`; a later daemon may send one this client doesn't
   * know. Empty: the failure is not of the daemon's making (a lost connection, a deadline).
   */
  readonly reason: string;
  /** Goes with the reason. */
  readonly info: Readonly<Record<string, string>>;
  readonly violations: readonly FieldViolation[];
  /** Set when the daemon says that the same call may succeed after so many milliseconds. */
  readonly retryAfterMs: number | undefined;

  constructor(message: string, code: Code, from?: ConnectError, reason = "") {
    super(message, code, from?.metadata, undefined, from?.cause);
    // What Connect recognizes its errors by looks at names, and would take any of them for one of these.
    Object.defineProperty(this, BRAND, { value: true });
    this.details = from?.details ?? [];
    const info = from?.findDetails(ErrorInfoSchema).find((detail) => detail.domain === DOMAIN);
    this.reason = info?.reason ?? reason;
    this.info = info?.metadata ?? {};
    this.violations = (from?.findDetails(BadRequestSchema) ?? []).flatMap((bad) =>
      bad.fieldViolations.map(({ field, description }) => ({ field, description })),
    );
    const delay = from?.findDetails(RetryInfoSchema)[0]?.retryDelay;
    this.retryAfterMs = delay && Number(delay.seconds) * 1000 + Math.round(delay.nanos / 1e6);
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    return typeof value === "object" && value !== null && BRAND in value;
  }

  /** Makes a SessiondError of whatever a call threw. */
  static of(thrown: unknown): SessiondError {
    if (thrown instanceof SessiondError) return thrown;
    const error = ConnectError.from(thrown);
    return new SessiondError(error.rawMessage, codeOf(error), error);
  }
}

/** Whether `thrown` is an error of the daemon's with that reason. */
export function hasReason(thrown: unknown, reason: ErrorReason): boolean {
  return thrown instanceof SessiondError && thrown.reason !== "" && thrown.reason === ErrorReason[reason];
}

/** A code's name as the gRPC specification writes it: `NOT_FOUND`. */
export function codeName(code: Code): string {
  const name = Code[code] as string | undefined;
  if (name === undefined) return `CODE_${code}`;
  // Connect follows the American spelling, gRPC the British one.
  return name === "Canceled" ? "CANCELLED" : name.replace(/(?<=[a-z])(?=[A-Z])/g, "_").toUpperCase();
}

const LOST = new Set([
  "ECONNREFUSED",
  "ECONNRESET",
  // Of a unix socket: the daemon is not there, or not yet there again.
  "ENOENT",
  "EPIPE",
  "ERR_HTTP2_GOAWAY_SESSION",
  "ERR_HTTP2_INVALID_SESSION",
  "ERR_HTTP2_INVALID_STREAM",
  "ERR_HTTP2_SESSION_ERROR",
  "ERR_STREAM_DESTROYED",
  "ERR_STREAM_PREMATURE_CLOSE",
]);

/** Connect has INTERNAL and ABORTED for connections that broke; everywhere else in gRPC that is UNAVAILABLE. */
function codeOf(error: ConnectError): Code {
  if (error.details.length > 0) return error.code;
  for (let cause = error.cause; cause instanceof Error; cause = cause.cause) {
    if ("code" in cause && LOST.has(String(cause.code))) return Code.Unavailable;
  }
  return error.code;
}

/** Whether a stream that ended so is worth another attempt, and whether that is only a guess. */
export function mayHeal(error: SessiondError, heard: boolean): { heals: boolean; guess: boolean } {
  if (error.code === Code.Unavailable) return { heals: true, guess: false };
  if (error.retryAfterMs !== undefined) return { heals: heard, guess: false };
  // What transports and proxies call a connection that was cut.
  const guess = error.reason === "" && [Code.Internal, Code.Unknown, Code.Canceled].includes(error.code);
  return { heals: guess, guess };
}
