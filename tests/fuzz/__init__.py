"""Any bytes, guided by what they reach in the code: `python -m tests.fuzz.run`."""

# Bytes of one input; a seed that is longer would be cut anywhere.
MAX_INPUT = 64 * 1024
