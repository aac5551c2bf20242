"""AttachmentService: files to and from a session."""

from __future__ import annotations

from sessiond.v1 import attachment_service_pb2 as pb
from sessiond.v1 import session_pb2
from sessiond_server.attachments import AttachmentRows, Attachments, check_ref, not_found
from sessiond_server.rpc import Context

__all__ = ["AttachmentService"]


class AttachmentService:
    """The calls of `sessiond.v1.AttachmentService`."""

    def __init__(self, attachments: Attachments, rows: AttachmentRows) -> None:
        self._attachments = attachments
        self._rows = rows

    async def WriteAttachment(
        self, request: pb.WriteAttachmentRequest, context: Context
    ) -> pb.WriteAttachmentResponse:
        """Take one chunk of an upload; with the last one, give the session its attachment."""
        self._attachments.check(request)
        ref = request.sha256.lower() if request.finish else ""
        present = self._rows.get(request.session_id, ref)
        if present is not None:
            # The last response was lost, or the session has the same content already.
            self._attachments.drop_upload(request)
            return pb.WriteAttachmentResponse(committed_size=present.size_bytes, attachment=present)
        response = self._attachments.write(request)
        if response.HasField("attachment"):
            await self._rows.add(request.session_id, response.attachment)
        return response

    async def GetAttachment(
        self, request: pb.GetAttachmentRequest, context: Context
    ) -> pb.GetAttachmentResponse:
        """Describe an attachment."""
        return pb.GetAttachmentResponse(attachment=self._find(request.session_id, request.ref))

    async def ReadAttachment(self, request: pb.ReadAttachmentRequest, context: Context) -> None:
        """Stream an attachment's bytes from an offset on."""
        attachment = self._find(request.session_id, request.ref)
        for piece in self._attachments.read(attachment, request.offset):
            await context.write(pb.ReadAttachmentResponse(data=piece))

    def _find(self, session_id: str, ref: str) -> session_pb2.Attachment:
        check_ref(ref)
        found = self._rows.get(session_id, ref)
        if found is None:
            raise not_found(ref)
        return found
