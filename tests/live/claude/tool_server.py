"""A tool server on stdio with one tool, `ask`, which has a form filled in and tells what came back."""

from __future__ import annotations

import json
import sys
from typing import Any

_FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name"},
        "age": {"type": "integer"},
        "colour": {"type": "string", "enum": ["red", "blue"]},
        "ok": {"type": "boolean"},
    },
    "required": ["name"],
}
_TOOL = {"name": "ask", "description": "Asks", "inputSchema": {"type": "object", "properties": {}}}


def _send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def _result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "forms", "version": "1"},
        }
    return {"tools": [_TOOL]} if method == "tools/list" else {}


def main() -> None:
    """Serve until stdin ends."""
    call: Any = None
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method", "")
        if method == "tools/call":
            call = message["id"]
            params = {"message": "Who are you?", "requestedSchema": _FORM}
            _send({"id": "form", "method": "elicitation/create", "params": params})
        elif message.get("id") == "form":
            said = f"got {json.dumps(message.get('result'))}"
            _send({"id": call, "result": {"content": [{"type": "text", "text": said}]}})
        elif method and "id" in message:
            _send({"id": message["id"], "result": _result(method, message.get("params", {}))})


if __name__ == "__main__":
    main()
