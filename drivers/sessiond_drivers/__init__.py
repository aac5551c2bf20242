"""Drivers: one folder per agent dialect, each a pure translator (see `base`).

`base` is the contract, `jsonl` the reading of JSON lines, `ledger` the shared bookkeeping of open turns,
tools and questions. A driver is registered as an entry point of the group `sessiond.drivers`.
"""
