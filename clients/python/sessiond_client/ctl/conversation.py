"""The layout of `attach`: a conversation in paragraphs rather than a list of events."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

from .render import Piece

__all__ = ["Conversation"]

_SIGNS = {
    "user": "> ",
    "peer": "< ",
    "tool": "● ",
    "question": "? ",
    "error": "✗ ",
    "notice": "! ",
}
_MOST_LINES = 12
_FENCES = ("```", "~~~")


class Conversation:
    """Turns pieces into what is printed above the input line.

    Running text is held back until a paragraph is whole, so that it can be rendered as Markdown;
    `partial` is what is held back. `feed` and `finish` yield what can be printed for good.
    """

    def __init__(self) -> None:
        self.partial = ""
        self._stream: Piece | None = None

    def feed(self, piece: Piece) -> Iterator[RenderableType]:
        """Take the next piece."""
        if piece.minor:
            return
        if self._stream is not None and piece.stream != self._stream.stream:
            yield from self.finish()
        if not piece.stream:
            yield _block(piece)
            return
        self._stream = piece
        self.partial += piece.text
        cut = _end_of_paragraphs(self.partial) if piece.markdown else self.partial.rfind("\n") + 1
        if cut:
            yield _running(piece, self.partial[:cut])
            self.partial = self.partial[cut:]

    def finish(self) -> Iterator[RenderableType]:
        """Close the running text."""
        rest, self.partial = self.partial, ""
        piece, self._stream = self._stream, None
        if piece is not None and rest.strip():
            yield _running(piece, rest)


def _running(piece: Piece, text: str) -> RenderableType:
    shown = Markdown(text.strip("\n")) if piece.markdown else Text(text.rstrip("\n"), piece.style)
    return Padding(shown, (0, 0, 1 if piece.markdown else 0, 2 if piece.nested else 0))


def _block(piece: Piece) -> RenderableType:
    sign = _SIGNS.get(piece.label, "  ")
    lines = piece.text.split("\n")
    if piece.label in {"tool end", "output"} and len(lines) > _MOST_LINES:
        hidden = len(lines) - _MOST_LINES
        lines = [*lines[:_MOST_LINES], f"… {hidden} more lines"]
    text = Text(f"{sign}{f'{chr(10)}  '.join(lines)}", piece.style)
    above = 1 if piece.label in {"user", "question", "command"} else 0
    return Padding(text, (above, 0, 0, 2 if piece.nested else 0))


def _end_of_paragraphs(text: str) -> int:
    """Return where the last whole paragraph ends: after an empty line outside a fenced block."""
    end = at = 0
    fence = ""
    for line in text.splitlines(keepends=True):
        at += len(line)
        bare = line.strip()
        if fence:
            fence = "" if bare == fence else fence
        elif bare.startswith(_FENCES):
            fence = bare[:3]
        elif not bare and line.endswith("\n"):
            end = at
    return end
