import { createHash } from "node:crypto";
import { type Client, Code } from "@connectrpc/connect";
import type { AttachmentService } from "#gen/sessiond/v1/attachment_service_pb.js";
import { ErrorReason } from "#gen/sessiond/v1/error_reason_pb.js";
import type { Attachment } from "#gen/sessiond/v1/session_pb.js";
import { hasReason, SessiondError } from "./errors.js";
import { attempts, MAX_ATTEMPTS, newRequestId, Pace, pause } from "./retry.js";

/** How much of an attachment travels in one call. */
export const CHUNK_BYTES = 1 << 20;

type Attachments = Client<typeof AttachmentService>;

export interface Upload {
  mediaType?: string;
  filename?: string;
  /**
   * Names the upload until it is finished; default: a random one. An upload that broke off goes on where the daemon
   * has it when it is given the same id.
   */
  uploadId?: string;
  /** At most, and by default, CHUNK_BYTES. */
  chunkBytes?: number;
  signal?: AbortSignal;
}

export async function upload(
  attachments: Attachments,
  sessionId: string,
  content: Uint8Array,
  about: Upload = {},
): Promise<Attachment> {
  const sha256 = createHash("sha256").update(content).digest("hex");
  const uploadId = about.uploadId || newRequestId();
  const chunk = Math.min(about.chunkBytes || CHUNK_BYTES, CHUNK_BYTES);
  const { mediaType = "", filename = "" } = about;
  for (let offset = 0, stepsBack = 0; ;) {
    const data = content.subarray(offset, offset + chunk);
    const finish = offset + data.length >= content.length;
    const common = { sessionId, uploadId, offset: BigInt(offset), data, mediaType, filename };
    const request = finish ? { ...common, finish, sha256 } : common;
    const options = about.signal ? { signal: about.signal } : {};
    try {
      const response = await attempts(
        (timeoutMs) => attachments.writeAttachment(request, { ...options, timeoutMs }),
        options,
      );
      if (response.attachment) return response.attachment;
      offset = Number(response.committedSize);
    } catch (thrown) {
      // What was sent before and never confirmed had arrived after all.
      const committed = committedSize(thrown);
      if (committed === undefined || committed === offset || committed > content.length) throw thrown;
      if (++stepsBack > MAX_ATTEMPTS) throw thrown;
      offset = committed;
    }
  }
}

function committedSize(thrown: unknown): number | undefined {
  if (!hasReason(thrown, ErrorReason.WRONG_OFFSET)) return undefined;
  const said = (thrown as SessiondError).info["committed_size"] ?? "";
  return /^\d+$/.test(said) ? Number(said) : undefined;
}

export async function* download(
  attachments: Attachments,
  sessionId: string,
  ref: string,
  options: { signal?: AbortSignal } = {},
): AsyncGenerator<Uint8Array> {
  const digest = createHash("sha256");
  const pace = new Pace();
  let offset = 0n;
  for (let attempt = 1; ; attempt++) {
    try {
      for await (const { data } of attachments.readAttachment(
        { sessionId, ref, offset },
        { ...options, timeoutMs: 0 },
      )) {
        offset += BigInt(data.length);
        digest.update(data);
        attempt = 1;
        yield data;
      }
      break;
    } catch (thrown) {
      const error = SessiondError.of(thrown);
      if (error.code !== Code.Unavailable || attempt === MAX_ATTEMPTS) throw error;
      await pause(pace.next(error.retryAfterMs), options);
    }
  }
  if (digest.digest("hex") !== ref) {
    throw new SessiondError(
      `what the daemon sent is not attachment ${ref}`,
      Code.DataLoss,
      undefined,
      ErrorReason[ErrorReason.DIGEST_MISMATCH],
    );
  }
}
