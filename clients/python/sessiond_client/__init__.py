"""The Python client and sessionctl."""
