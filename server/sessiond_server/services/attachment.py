"""AttachmentService: files to and from a session."""

from __future__ import annotations

from sessiond.v1 import attachment_service_pb2 as pb
from sessiond_server.attachments import Attachments
from sessiond_server.rpc import Context

__all__ = ["AttachmentService"]


class AttachmentService:
    """The calls of `sessiond.v1.AttachmentService`."""

    def __init__(self, attachments: Attachments) -> None:
        self._attachments = attachments

    async def WriteAttachment(
        self, request: pb.WriteAttachmentRequest, context: Context
    ) -> pb.WriteAttachmentResponse:
        """Take one chunk of an upload."""
        return await self._attachments.write(request)

    async def GetAttachment(
        self, request: pb.GetAttachmentRequest, context: Context
    ) -> pb.GetAttachmentResponse:
        """Describe an attachment."""
        found = self._attachments.get(request.session_id, request.ref)
        return pb.GetAttachmentResponse(attachment=found)

    async def ReadAttachment(self, request: pb.ReadAttachmentRequest, context: Context) -> None:
        """Stream an attachment's bytes from an offset on."""
        pieces = self._attachments.read(request.session_id, request.ref, request.offset)
        for piece in pieces:
            await context.write(pb.ReadAttachmentResponse(data=piece))
