"""The real Claude Code through the whole stack; see `__main__`."""
