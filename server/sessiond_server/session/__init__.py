"""A session: its pure core (core, calls, fold, state), and the actor that makes its steps durable."""

from sessiond_server.session import calls
from sessiond_server.session.actor import Session
from sessiond_server.session.context import Contents, Context, request_id_reused
from sessiond_server.session.core import Core
from sessiond_server.session.product import Identity, Limits, Product
from sessiond_server.session.state import Attached, Spec, State, decode_spec, encode

__all__ = [
    "Attached",
    "Contents",
    "Context",
    "Core",
    "Identity",
    "Limits",
    "Product",
    "Session",
    "Spec",
    "State",
    "calls",
    "decode_spec",
    "encode",
    "request_id_reused",
]
