"""Benchmarks: each prints what it saw, and as its last line one JSON object."""
