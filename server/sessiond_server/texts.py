"""Texts that have to fit."""

from __future__ import annotations

__all__ = ["begin"]


def begin(text: str, most: int) -> str:
    """Return the beginning of `text`: at most `most` bytes of UTF-8, no half a character at its end.

    What UTF-8 has no bytes for, a lone surrogate, becomes "?".
    """
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
