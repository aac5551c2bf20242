"""Real third-party agents through the whole stack: client, daemon, shim, the program, a scripted model.

The programs come from their registries, pinned, into `.toolchains/`; the model is on loopback.
"""
