"""The actions of Control, one method each."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sessiond.v1 import session_service_pb2 as wire

__all__ = ["ControlMethods"]


class ControlMethods(ABC):
    """What `Control` can ask for. Each method returns once the request is durable.

    The response's `queued` says that the action waits for the turn to end. What came of it is an event:
    SettingsChanged, TurnEnded, Compacted, Cleared, CommandOutput, ProcessExited, or ErrorRaised.
    """

    @abstractmethod
    async def control(self, request: wire.ControlRequest) -> wire.ControlResponse:
        """Ask for an action on the session."""

    async def interrupt(
        self, session_id: str, turn_id: str = "", *, request_id: str = ""
    ) -> wire.ControlResponse:
        """End the running turn, only if it is `turn_id` when that is given."""
        action = wire.Interrupt(turn_id=turn_id)
        return await self.control(
            wire.ControlRequest(session_id=session_id, request_id=request_id, interrupt=action)
        )

    async def set_model(
        self, session_id: str, model: str, *, request_id: str = ""
    ) -> wire.ControlResponse:
        """Change the model to the id of one of the offered choices."""
        action = wire.SetModel(model=model)
        return await self.control(
            wire.ControlRequest(session_id=session_id, request_id=request_id, set_model=action)
        )

    async def set_permission_mode(
        self, session_id: str, permission_mode: str, *, request_id: str = ""
    ) -> wire.ControlResponse:
        """Change what the agent may do without asking."""
        action = wire.SetPermissionMode(permission_mode=permission_mode)
        return await self.control(
            wire.ControlRequest(session_id=session_id, request_id=request_id, set_permission_mode=action)
        )

    async def set_effort(
        self, session_id: str, effort: str, *, request_id: str = ""
    ) -> wire.ControlResponse:
        """Change the effort; empty is the agent's default."""
        action = wire.SetEffort(effort=effort)
        return await self.control(
            wire.ControlRequest(session_id=session_id, request_id=request_id, set_effort=action)
        )

    async def set_title(
        self, session_id: str, title: str, *, request_id: str = ""
    ) -> wire.ControlResponse:
        """Change the title, of the agent's own record too where it has one."""
        action = wire.SetTitle(title=title)
        return await self.control(
            wire.ControlRequest(session_id=session_id, request_id=request_id, set_title=action)
        )

    async def compact(
        self, session_id: str, instructions: str = "", *, request_id: str = ""
    ) -> wire.ControlResponse:
        """Have the agent summarise its context, between turns."""
        action = wire.Compact(instructions=instructions)
        return await self.control(
            wire.ControlRequest(session_id=session_id, request_id=request_id, compact=action)
        )

    async def clear(self, session_id: str, *, request_id: str = "") -> wire.ControlResponse:
        """Have the agent forget its context, between turns; the transcript stays."""
        return await self.control(
            wire.ControlRequest(session_id=session_id, request_id=request_id, clear=wire.Clear())
        )

    async def run_command(
        self, session_id: str, text: str, *, request_id: str = ""
    ) -> wire.ControlResponse:
        """Run a command of the agent's own, slash included, between turns."""
        action = wire.RunCommand(text=text)
        return await self.control(
            wire.ControlRequest(session_id=session_id, request_id=request_id, run_command=action)
        )

    async def stop(self, session_id: str, *, request_id: str = "") -> wire.ControlResponse:
        """End the process; the session and its transcript stay."""
        return await self.control(
            wire.ControlRequest(session_id=session_id, request_id=request_id, stop=wire.Stop())
        )

    async def restart(self, session_id: str, *, request_id: str = "") -> wire.ControlResponse:
        """Start the process again on the same conversation."""
        return await self.control(
            wire.ControlRequest(session_id=session_id, request_id=request_id, restart=wire.Restart())
        )
