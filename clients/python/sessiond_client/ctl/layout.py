"""How pieces are put on lines."""

from __future__ import annotations

from rich.text import Text

from .render import Piece

__all__ = ["Gutter"]

_LABEL_WIDTH = 10


class Gutter:
    """Lines with the seq and the kind on the left; running text continues on its line.

    `feed` returns what is to be written for the next piece, exactly, without a line end after it when
    more of the same text may follow. `finish` returns what closes the last line.
    """

    def __init__(self) -> None:
        self._stream = ""
        self._open = False

    def feed(self, seq: int, piece: Piece) -> Text:
        """Lay out the piece of event `seq`."""
        nested = "| " if piece.nested else ""
        indent = " " * 8 + " " * (_LABEL_WIDTH + 1) + nested
        body = piece.text.replace("\n", f"\n{indent}")
        if piece.stream and piece.stream == self._stream:
            return Text(body, piece.style)
        laid_out = Text("\n" if self._open else "")
        laid_out.append(f"{seq:>7} {piece.label:<{_LABEL_WIDTH}} ", "dim").append(nested, "dim")
        laid_out.append(body, piece.style)
        if not piece.stream:
            laid_out.append("\n")
        self._stream = piece.stream
        self._open = bool(piece.stream)
        return laid_out

    def finish(self) -> Text:
        """Close the line that is open, if one is."""
        closing = Text("\n" if self._open else "")
        self._open = False
        self._stream = ""
        return closing
